"""A test of values: is this an entry for readers? Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compactory.codec.decoding import document_reader, field_reader
from compactory.directory import Directory

__all__ = ["entry_test"]


def entry_test(directory: Directory[Any]) -> Callable[[bytes | None], bool]:
    """Return a function: is this value an entry? A value that readers can't read counts as one."""
    if directory.active is None:
        return lambda value: value is not None
    read, active = document_reader(directory.envelope), field_reader(directory.active)

    def is_entry(value: bytes | None) -> bool:
        if value is None:
            return False
        try:
            entry = read(value)
        except ValueError:
            return True
        return entry is not None and active(entry) is not False

    return is_entry
