"""Java .properties text → dict, as ``java.util.Properties.load`` reads it. Pure; knows no files."""

from __future__ import annotations

import re

__all__ = ["parse_properties"]

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_ESCAPED = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_BAD_UNICODE = re.compile(r"(?<!\\)(?:\\\\)*\\u(?![0-9A-Fa-f]{4})")


def parse_properties(text: str) -> dict[str, str]:
    r"""The keys and values of ``text``; the last of two equal keys wins.

    Comments (``#``, ``!``), continuation lines, ``=``, ``:`` or white space between key and value, and the escapes
    ``\t \n \r \f \uXXXX`` are read as Java reads them. Raises ValueError for a malformed ``\u``, with the line's
    number and never its text, which may be a password.
    """
    result: dict[str, str] = {}
    for number, line in _logical_lines(text):
        if _BAD_UNICODE.search(line):
            raise ValueError(f"line {number}: \\u must be followed by four hexadecimal digits")
        key, value = _split(line)
        result[_unescape(key)] = _unescape(value)
    return result


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with their continuations joined, blank and comment lines left out, each with its first line's number."""
    lines: list[tuple[int, str]] = []
    pending: tuple[int, str] | None = None
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        piece = natural.lstrip(_BLANK)
        if pending is None:
            if not piece or piece[0] in "#!":
                continue
            first, joined = number, piece
        else:
            first, joined = pending[0], pending[1] + piece
        continues = (len(piece) - len(piece.rstrip("\\"))) % 2 == 1
        pending = (first, joined[:-1]) if continues else None
        if not continues:
            lines.append((first, joined))
    if pending is not None:
        lines.append(pending)
    return lines


def _split(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:end], rest


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        return _ESCAPES.get(match[2], match[2])

    # \uD83D\uDE00 is one character written as two UTF-16 halves
    return _ESCAPED.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
