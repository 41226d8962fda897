"""JSON text → the one text that Postgres' jsonb has for it. Pure.

Keys in the order of length, then bytes, the last of equal ones; numbers in numeric's spelling; texts escaped as little
as JSON allows. Sources: ``jsonb_util.c`` (``lengthCompareJsonbStringValue``), ``escape_json`` of PostgreSQL.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from compactory_connectors.connect.record.record import RowError

__all__ = ["jsonb_text"]

_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_ESCAPES = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_MOST_DIGITS = 131_072
"""Before the point, of a numeric; 16,383 behind it."""


class _Number(str):
    """A number in numeric's spelling."""

    __slots__ = ()


def jsonb_text(text: bytes) -> bytes | RowError:
    """The text of ``text::jsonb``; RowError where Postgres would refuse it."""
    try:
        value = json.loads(text.decode(), parse_int=_number, parse_float=_number, parse_constant=_refuse)
        return _text(value).encode()
    except (ValueError, RecursionError):
        return RowError("is no JSON that jsonb takes")


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _number(written: str) -> _Number:
    number = Decimal(written)
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    if number.adjusted() >= _MOST_DIGITS or -exponent > 16_383:
        raise ValueError("out of numeric's range")
    return _Number(f"{number or abs(number):f}")


def _text(value: Any) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(raw := key.encode()), raw))
        return f"{{{', '.join(f'{_quoted(key)}: {_text(value[key])}' for key in keys)}}}"
    return {None: "null", True: "true", False: "false"}[value]


def _quoted(value: str) -> str:
    if "\0" in value:
        raise ValueError("NUL")
    return f'"{_ESCAPED.sub(_escape, value)}"'


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}"
