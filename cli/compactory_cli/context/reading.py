"""Directories read straight from their topics, for commands that need nothing but Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from compactory import Directory, GlobalStore
from compactory.errors import ConfigError
from compactory.nearest import nearest

from ..views.loading_bars import LoadingBar
from .configuration import Configuration

__all__ = ["read", "resolve"]


def resolve(configuration: Configuration, names: Iterable[str]) -> list[Directory[Any]]:
    """The directories of these names: those of compactory.toml, else bare topics, looked up by the record's key.

    Raises ConfigError with the nearest name for every topic that does not exist, and Unreachable.
    """
    found = [configuration.directory(name) or Directory(name) for name in names]
    kafka = configuration.kafka()
    present = kafka.topics({directory.topic for directory in found})
    missing = [directory for directory in found if directory.topic not in present]
    if missing:
        absent = {directory.topic for directory in missing}
        known = sorted({*kafka.topic_names(), *configuration.directories} - absent)
        raise ConfigError(_unknown(directory, kafka.bootstrap, known) for directory in missing)
    return found


@contextmanager
def read(configuration: Configuration, directories: Iterable[Directory[Any]]) -> Iterator[GlobalStore]:
    """A store of these directories, read to the end of their topics; the log says where no record is usable.

    Raises Unreachable and StartTimeout.
    """
    found = list(directories)
    topics = ", ".join(sorted({directory.topic for directory in found}))
    bar = LoadingBar(f"reading {topics}", lines=configuration.log_level is None)
    properties = configuration.kafka().properties()
    store = GlobalStore(properties, found, on_progress=bar.update, unusable_directory="serve")
    with bar:
        store.start()
    try:
        yield store
    finally:
        store.close()


def _unknown(directory: Directory[Any], bootstrap: str, known: list[str]) -> str:
    others = f"; there are {', '.join(known[:5])}" + (" …" if len(known) > 5 else "")
    hint = nearest(directory.topic, known) or (others if known else "; it has no topics yet")
    called = "" if directory.name == directory.topic else f" of directory {directory.name!r}"
    return f"topic {directory.topic!r}{called} does not exist on Kafka at {bootstrap}{hint}"
