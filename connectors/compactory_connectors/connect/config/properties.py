"""Java .properties text → dict, as ``java.util.Properties.load`` reads it. Pure; knows no files."""

from __future__ import annotations

from javaproperties import InvalidUEscapeError, KeyValue, parse

__all__ = ["parse_properties"]


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the keys and values of ``text``; the last of two equal keys wins.

    Raises ValueError for a malformed ``\u``, with the line's number and never its text, which may be a password.
    """
    values: dict[str, str] = {}
    line = 1
    try:
        for item in parse(text):
            if isinstance(item, KeyValue):
                values[item.key] = item.value
            line += max(1, item.source.count("\n"))
    except InvalidUEscapeError:
        raise ValueError(f"line {line}: \\u must be followed by four hexadecimal digits") from None
    return values
