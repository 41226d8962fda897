"""Reads directories from their topics, for commands that need Kafka only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from compactory import Directory, GlobalStore
from compactory.errors import ConfigError
from compactory.loading import Loading
from compactory.nearest import nearest

from ..views.terminal import error_output
from .configuration import Configuration

__all__ = ["read", "resolve"]


def resolve(configuration: Configuration, names: Iterable[str]) -> list[Directory[Any]]:
    """Return the directories of these names: of compactory.toml, else topics looked up by the record's key.

    Raises ConfigError with the nearest name for every topic that does not exist, and Unreachable.
    """
    directories = [configuration.directory(name) or Directory(name) for name in names]
    kafka = configuration.kafka()
    present = kafka.topics({directory.topic for directory in directories})
    missing = [directory for directory in directories if directory.topic not in present]
    if missing:
        absent = {directory.topic for directory in missing}
        existing_names = sorted({*kafka.topic_names(), *configuration.directories} - absent)
        raise ConfigError(_unknown(directory, kafka.bootstrap, existing_names) for directory in missing)
    return directories


@contextmanager
def read(configuration: Configuration, directories: Iterable[Directory[Any]]) -> Iterator[GlobalStore]:
    """Yield a store that has read the topics of these directories to their ends.

    Raises Unreachable and StartTimeout.
    """
    to_read = list(directories)
    topics = ", ".join(sorted({directory.topic for directory in to_read}))
    properties = configuration.kafka().properties()
    with error_output().status(f"reading {topics}") as status:

        def show(loading: Loading) -> None:
            status.update(f"reading {topics}: {loading}")

        store = GlobalStore(properties, to_read, on_progress=show, unusable_directory="serve")
        store.start()
    try:
        yield store
    finally:
        store.close()


def _unknown(directory: Directory[Any], bootstrap: str, existing_names: list[str]) -> str:
    listing = f"; there are {', '.join(existing_names[:5])}" + (" …" if len(existing_names) > 5 else "")
    hint = nearest(directory.topic, existing_names) or (listing if existing_names else "; it has no topics yet")
    owner = "" if directory.name == directory.topic else f" of directory {directory.name!r}"
    return f"topic {directory.topic!r}{owner} does not exist on Kafka at {bootstrap}{hint}"
