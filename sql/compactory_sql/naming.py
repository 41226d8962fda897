"""Names and literals in SQL text: made, quoted, taken apart. Names of existing objects come quoted from the server."""

from __future__ import annotations

import hashlib
import itertools
import re

__all__ = ["dollar_quoted", "fold", "literal", "made_name", "quoted", "split_name"]

_LIMIT = 63  # bytes; NAMEDATALEN - 1
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".]+)')


def made_name(stem: str, suffix: str) -> str:
    """``stem_suffix``, shortened with a hash of the stem when Postgres would cut it and two names could collide."""
    name = f"{stem}_{suffix}"
    if len(name.encode()) <= _LIMIT:
        return name
    tail = f"_{hashlib.sha256(stem.encode()).hexdigest()[:8]}_{suffix}"
    return stem.encode()[: _LIMIT - len(tail.encode())].decode(errors="ignore") + tail


def quoted(name: str) -> str:
    """A name of :func:`made_name` as SQL wants it. (Its ending is ours, so that it is no keyword.)"""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string constant, right whatever ``standard_conforming_strings`` says."""
    inner = text.replace("'", "''")
    return f"E'{inner}'".replace("\\", "\\\\") if "\\" in inner else f"'{inner}'"


def dollar_quoted(body: str) -> str:
    """A string constant that leaves a function's body readable."""
    tag = next(tag for number in itertools.count() if (tag := f"$body{number or ''}$") not in body)
    return f"{tag}{body}{tag}"


def split_name(text: str) -> list[tuple[str, bool]] | None:
    """The parts of a dotted name, each with whether it was in double quotes; None when it is none."""
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
    """An unquoted name as the server folds it: ASCII letters only, in a UTF-8 database."""
    return re.sub("[A-Z]+", lambda match: match[0].lower(), name)
