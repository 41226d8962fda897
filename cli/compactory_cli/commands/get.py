"""``compactory get``: one entry of a directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ..context.flags import Flags, argument, command, option
from ..context.session import begin
from ..views.terminal import json_or_text, number, output, print_json, write

if TYPE_CHECKING:
    from ..context.configuration import Configuration

__all__ = ["get"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """An entry, from a topic or from a server."""

    key: str
    value: bytes
    topic: str | None
    partition: int | None
    offset: int | None
    timestamp_ms: int | None = None


@command
def get(
    flags: Flags,
    directory: Annotated[str, argument("DIRECTORY", "A directory of compactory.toml, or a topic.")],
    key: Annotated[str, argument("KEY", "The key to look up.")],
    by: Annotated[str | None, option("--by", "FIELD", "Look a topic up by this field of the value.")] = None,
) -> None:
    """Print the entry of a key.

    Reads the topic to its end and looks the key up, or asks the server at COMPACTORY_URL.
    """
    configuration = begin(flags)
    found = _ask(configuration, directory, key) if configuration.url else _read(configuration, directory, key, by)
    value = json_or_text(found.value)
    if flags.json:
        fields = ("topic", "partition", "offset", "timestamp_ms")
        print_json({"key": key, "value": value} | {name: getattr(found, name) for name in fields})
    elif isinstance(value, str):
        write(value)
    else:
        output().print_json(data=value)


def _ask(configuration: Configuration, directory: str, key: str) -> _Found:
    from ..context.remote import Server

    entry = Server(configuration.url or "", configuration.tokens.any).entry(directory, key)
    return _Found(key=key, value=entry.value, topic=entry.topic, partition=entry.partition, offset=entry.offset)


def _read(configuration: Configuration, name: str, key: str, by: str | None) -> _Found:
    from compactory import Directory

    from ..context.reading import read, resolve

    [directory] = resolve(configuration, [name])
    if by is not None:
        directory = Directory(directory.name, topic=directory.topic, key=by, active=directory.active)
    with read(configuration, [directory]) as store:
        view = store[directory.name]
        try:
            entry = view.entry(key)
        except KeyError as error:
            raise _missing(error, directory, key, len(view), next(iter(view), None)) from None
    return _Found(**{name: getattr(entry, name) for name in _Found.__dataclass_fields__})


def _missing(error: KeyError, directory: Any, key: str, entries: int, example: str | None) -> Exception:
    from compactory import BadRecord

    from ..context.failure import StepFailed

    if isinstance(error, BadRecord):
        return error
    by = f"field {directory.key!r}" if directory.key else "the record's key"
    hint = f", such as {example!r}" if example is not None else ""
    return StepFailed(
        f"no entry {key!r} in directory {directory.name!r}: {number(entries)} entries, looked up by {by}{hint}"
    )
