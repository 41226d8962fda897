"""Postgres' text form of values that have parts: arrays, composites and hstore, taken apart. Pure functions of bytes.

Sources: the manual, sections 8.15.6 (arrays) and 8.16.6 (composites), and F.18 (hstore). Parts stay in the text form of
their own types; None is NULL.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from .record import RowError

__all__ = ["Parts", "array_parts", "composite_parts", "hstore_items"]

Parts: TypeAlias = "list[bytes | Parts | None]"

_ARRAY_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"|([{},])|([^{},"]+)', re.DOTALL)
_BOUNDS = re.compile(rb"(?:\[[+-]?\d+:[+-]?\d+\])+=")
_BOX_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"|([{};])|([^{};"]+)', re.DOTALL)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_ATTRIBUTE = re.compile(rb'((?:"(?:[^"\\]|\\.|"")*"|\\.|[^",()\\])*)([,)])', re.DOTALL)
_QUOTED_PART = re.compile(rb'"((?:[^"\\]|\\.|"")*)"|\\(.)', re.DOTALL)
_PAIR = re.compile(rb'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|(NULL))(?:, |$)', re.DOTALL)


def array_parts(raw: bytes, dimensions: int, *, semicolons: bool = False) -> Parts:
    """``{1,NULL,"a b"}`` → its elements, lists of them where ``dimensions`` is above 1; an empty array is empty.

    ``semicolons``: the delimiter of ``box[]``. Raises RowError for another number of dimensions than that.
    """
    if match := _BOUNDS.match(raw):
        raw = raw[match.end() :]
    if raw == b"{}":
        return []
    stack: list[Parts] = []
    done: Parts = []
    for match in (_BOX_TOKEN if semicolons else _ARRAY_TOKEN).finditer(raw):
        quoted, mark, plain = match.groups()
        if mark == b"{":
            stack.append([])
        elif mark == b"}":
            done = stack.pop()
            if stack:
                stack[-1].append(done)
        elif mark is None:
            if len(stack) != dimensions:
                raise RowError(f"the array has {len(stack)} dimensions, and its column was declared with {dimensions}")
            stack[-1].append(_element(quoted, plain))
    if _depth(done) != dimensions:
        raise RowError(f"the array has {_depth(done)} dimensions, and its column was declared with {dimensions}")
    return done


def _element(quoted: bytes | None, plain: bytes | None) -> bytes | None:
    if quoted is not None:
        return _ESCAPE.sub(rb"\1", quoted)
    assert plain is not None
    return None if plain == b"NULL" else plain


def _depth(parts: Parts) -> int:
    first = parts[0] if parts else None
    return 1 + (_depth(first) if isinstance(first, list) else 0)


def composite_parts(raw: bytes) -> list[bytes | None]:
    """``(1,,"a b")`` → its attributes; nothing between two commas is NULL, two quotes are an empty text."""
    if raw == b"()":
        return [None]
    return [_attribute(match[1]) for match in _ATTRIBUTE.finditer(raw, 1)]


def _attribute(text: bytes) -> bytes | None:
    if not text:
        return None
    if b'"' not in text and b"\\" not in text:
        return text
    return _QUOTED_PART.sub(lambda match: match[2] or _unquoted(match[1] or b""), text)


def _unquoted(text: bytes) -> bytes:
    return re.sub(rb'\\(.)|""', lambda match: match[1] or b'"', text, flags=re.DOTALL)


def hstore_items(raw: bytes) -> dict[bytes, bytes | None]:
    """``"a"=>"1", "b"=>NULL`` → a dictionary in the order of the text, which is Postgres' own."""
    return {
        _ESCAPE.sub(rb"\1", match[1]): None if match[3] else _ESCAPE.sub(rb"\1", match[2])
        for match in _PAIR.finditer(raw)
    }
