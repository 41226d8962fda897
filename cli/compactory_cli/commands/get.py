"""``compactory get``: prints an entry of a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ..context.flags import argument
from ..context.session import begin
from ..views.terminal import counted, fields, json_or_text, output, print_json, wants_json, write

if TYPE_CHECKING:
    from compactory import Entry

    from ..context.configuration import Configuration

__all__ = ["get"]


def get(
    directory: Annotated[str, argument("DIRECTORY", "A directory of compactory.toml, or a topic.")],
    key: Annotated[str, argument("KEY", "The key to look up.")],
) -> None:
    """Print the entry of a key.

    Reads the topic to its end and looks the key up, or asks the server at COMPACTORY_URL.

    Example: `compactory get terminal_acquirer T42 --kafka localhost:9092`
    """
    configuration = begin()
    entry = (
        configuration.server().entry(directory, key)
        if configuration.url
        else _read_entry(configuration, directory, key)
    )
    value = json_or_text(entry.value)
    if wants_json():
        place = fields(entry, "topic", "partition", "offset")
        time = entry.timestamp_ms if entry.timestamp_ms >= 0 else None
        print_json({"key": key, "value": value, **place, "timestamp_ms": time})
    elif isinstance(value, str):
        write(value)
    else:
        output().print_json(data=value)


def _read_entry(configuration: Configuration, name: str, key: str) -> Entry:
    from compactory import BadRecord

    from ..context.failure import StepFailed
    from ..context.reading import read, resolve

    [directory] = resolve(configuration, [name])
    with read(configuration, [directory]) as store:
        view = store[directory.name]
        try:
            return view.entry(key)
        except BadRecord:
            raise
        except KeyError:
            by = f"field {directory.key!r}" if directory.key else "the record's key"
            example = next((f", such as {existing!r}" for existing in view), "")
            looked_up = f"{counted(len(view), 'entry', 'entries')}, looked up by {by}{example}"
            raise StepFailed(f"no entry {key!r} in directory {directory.name!r}: {looked_up}") from None
