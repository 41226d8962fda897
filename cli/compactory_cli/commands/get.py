"""``compactory get``: prints an entry of a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ..context.flags import argument, option
from ..context.session import begin, refuse
from ..views.terminal import counted, fields, json_or_text, output, print_json, wants_json, write

if TYPE_CHECKING:
    from compactory import Entry

    from ..context.configuration import Configuration

__all__ = ["get"]


def get(
    directory: Annotated[str, argument("DIRECTORY", "A directory of compactory.toml, or a topic.")],
    key: Annotated[str, argument("KEY", "The key to look up.")],
    by: Annotated[str | None, option("--by", "FIELD", "Look up by this field of the value; reads the topic.")] = None,
) -> None:
    """Print the entry of a key.

    Reads the topic to its end and looks the key up, or asks the server at COMPACTORY_URL.

    Example: `compactory get terminal_acquirer T42 --kafka localhost:9092`
    """
    configuration = begin()
    if configuration.url and by is not None:
        refuse(f"--by {by}: a server looks up by its own key of the directory; read the topic: add --kafka HOST:PORT")
    if configuration.url:
        entry = configuration.server().entry(directory, key)
    else:
        entry = _read_entry(configuration, directory, key, by)
    value = json_or_text(entry.value)
    if wants_json():
        place = fields(entry, "topic", "partition", "offset")
        time = entry.timestamp_ms if entry.timestamp_ms >= 0 else None
        print_json({"key": key, "value": value, **place, "timestamp_ms": time})
    elif isinstance(value, str):
        write(value)
    else:
        output().print_json(data=value)


def _read_entry(configuration: Configuration, name: str, key: str, by: str | None) -> Entry:
    from compactory import Directory

    from ..context.reading import read, resolve

    [directory] = resolve(configuration, [name])
    if by is not None:
        directory = Directory(directory.name, topic=directory.topic, key=by, active=directory.active)
    with read(configuration, [directory]) as store:
        view = store[directory.name]
        try:
            return view.entry(key)
        except KeyError as error:
            raise _missing(error, directory, key, len(view), next(iter(view), None)) from None


def _missing(error: KeyError, directory: Any, key: str, entries: int, example: str | None) -> Exception:
    from compactory import BadRecord

    from ..context.failure import StepFailed

    if isinstance(error, BadRecord):
        return error
    by = f"field {directory.key!r}" if directory.key else "the record's key"
    hint = f", such as {example!r}" if example is not None else ""
    entry_count = counted(entries, "entry", "entries")
    return StepFailed(f"no entry {key!r} in directory {directory.name!r}: {entry_count}, looked up by {by}{hint}")
