"""Names and constants in SQL text. The server quotes names of existing objects; this module quotes new ones."""

from __future__ import annotations

import hashlib
import itertools
import re

__all__ = ["dollar_quoted", "fold", "literal", "object_name", "quoted", "split_name"]

_LIMIT = 63  # bytes; NAMEDATALEN - 1
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".]+)')


def object_name(stem: str, suffix: str) -> str:
    """Return ``stem_suffix``. If it is longer than a name may be, a hash of the stem replaces the stem's end."""
    name = f"{stem}_{suffix}"
    if len(name.encode()) <= _LIMIT:
        return name
    tail = f"_{hashlib.sha256(stem.encode()).hexdigest()[:8]}_{suffix}"
    return stem.encode()[: _LIMIT - len(tail.encode())].decode(errors="ignore") + tail


def quoted(name: str) -> str:
    """Return a name of :func:`object_name` with double quotes where SQL needs them. (Its suffix rules out keywords.)"""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a string constant that is right with any ``standard_conforming_strings``."""
    inner = text.replace("'", "''")
    return f"E'{inner}'".replace("\\", "\\\\") if "\\" in inner else f"'{inner}'"


def dollar_quoted(body: str) -> str:
    """Return the body of a function as a string constant without escapes."""
    tag = next(tag for number in itertools.count() if (tag := f"$body{number or ''}$") not in body)
    return f"{tag}{body}{tag}"


def split_name(text: str) -> list[tuple[str, bool]] | None:
    """Split a dotted name. Return pairs of a part and True if it was in double quotes; None if it is not a name."""
    parts: list[tuple[str, bool]] = []
    position = 0
    while match := _PART.match(text, position):
        parts.append(((match["quoted"] or "").replace('""', '"') or match["plain"], match["plain"] is None))
        position = match.end()
        if position == len(text):
            return parts
        if text[position] != ".":
            return None
        position += 1
    return None


def fold(name: str) -> str:
    """Return an unquoted name as the server folds it in a UTF-8 database: only ASCII letters become small."""
    return re.sub("[A-Z]+", lambda match: match[0].lower(), name)
