r"""Java's regular expressions in Python: ``java.util.regex.Pattern`` and ``Matcher.replaceFirst``.

Patterns may hold anything that both languages write alike. ``\Q…\E``, ``\z``, ``\Z``, named groups and classes such
as ``\p{Alpha}`` are rewritten; everything else is refused. Classes such as ``\w`` are those of ASCII, as they are in
Java without flags.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["java_pattern", "replace_first"]

_BEGINNING = re.compile(r"\(\?([a-zA-Z]+)\)")
_NAME = "[a-zA-Z][a-zA-Z0-9]*"
_POSIX = {"Lower": "a-z", "Upper": "A-Z", "Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9"}
_ESCAPE = rf"\\(?:[dDsSwWtnrfa]|p\{{(?:{'|'.join(_POSIX)})\}}|x[0-9a-fA-F]{{2}}|u[0-9a-fA-F]{{4}}|[^a-zA-Z0-9])"
_PIECE = re.compile(
    rf"""
    \\Q(?P<quoted>.*?)(?:\\E|\Z)
    | \\k<(?P<reference>{_NAME})>
    | \(\?<(?P<group>{_NAME})>
    | \\(?P<end>[zZ])
    | \[(?P<not>\^?)(?P<class>\]?(?:{_ESCAPE}|(?!&&|--)[^\\\[\]])*)\]
    | (?:{_ESCAPE}|\\[bBA1-9]|\((?!\?)|\(\?(?:[:=!>]|<[=!]|[imsx]+:)|\{{[0-9]+(?:,[0-9]*)?\}}|[^\\\[{{(])
    """,
    re.VERBOSE | re.DOTALL,
)
_SIGN = re.compile(rf"\\(?P<quoted>.)|\$\{{(?P<name>{_NAME})\}}|\$(?P<digits>[0-9]+)|(?P<plain>[^\\$]+)", re.DOTALL)


def java_pattern(text: str) -> re.Pattern[str]:
    """``Pattern.compile``. Raises ValueError that names the piece of the pattern that is not supported."""
    flags = ""
    if found := _BEGINNING.match(text):
        flags, text = found[1], text[found.end() :]
        if unknown := set(flags) - set("imsx"):
            raise ValueError(f"flag {min(unknown)} is not supported")
    rewritten, at = "", 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise ValueError(_refusal(text[at:]))
        rewritten += _in_python(piece)
        at = piece.end()
    try:
        return re.compile(rewritten, re.ASCII | sum(getattr(re, flag.upper()) for flag in set(flags)))
    except (re.error, OverflowError) as error:
        raise ValueError(f"is not a regular expression that is supported ({error})") from None


def _in_python(piece: re.Match[str]) -> str:
    if piece["quoted"] is not None:
        return re.escape(piece["quoted"])
    if piece["reference"]:
        return f"(?P={piece['reference']})"
    if piece["group"]:
        return f"(?P<{piece['group']}>"
    if piece["end"]:
        return r"\Z" if piece["end"] == "z" else r"(?=\n?\Z)"
    if piece["class"] is not None:
        return f"[{piece['not']}{re.sub(rf'({_ESCAPE})|([]|~&])', _escaped, piece['class'])}]"
    return f"[{_POSIX[piece[0][3:-1]]}]" if piece[0].startswith(r"\p") else piece[0]


def _escaped(found: re.Match[str]) -> str:
    """A piece of a class: an escape, or a character that Python would take for an operation on sets."""
    if found[1]:
        return _POSIX[found[1][3:-1]] if found[1].startswith(r"\p") else found[1]
    return f"\\{found[2]}"


def _refusal(rest: str) -> str:
    if rest[0] == "\\":
        return f"{rest[:2]} is not supported; write the class out" if rest[1:] else "ends with a backslash"
    if rest[0] == "[":
        return "classes within classes, && and -- are not supported" if "]" in rest else "a class is not closed"
    if rest[0] == "{":
        return "a brace must be a repetition such as {2,3}; write \\{ for the character"
    return f"a construct that begins with {rest[:4]} is not supported"


def replace_first(pattern: re.Pattern[str], replacement: str) -> Callable[[str], str]:
    """``Matcher.replaceFirst``: ``$1`` and ``${name}`` are groups, a backslash takes the meaning from what follows.

    Raises ValueError for a group that the pattern does not have, and for a dangling ``$`` or backslash.
    """
    parts = _parts(pattern, replacement)

    def replaced(text: str) -> str:
        match = pattern.search(text)
        if match is None:
            return text
        new = "".join(part if isinstance(part, str) else match[part[0]] or "" for part in parts)
        return text[: match.start()] + new + text[match.end() :]

    return replaced


def _parts(pattern: re.Pattern[str], replacement: str) -> list[str | tuple[int | str]]:
    """Texts, and groups in tuples."""
    parts: list[str | tuple[int | str]] = []
    at = 0
    while at < len(replacement):
        sign = _SIGN.match(replacement, at)
        if sign is None and replacement[at] == "\\":
            raise ValueError("ends with a backslash, which must stand before the character that it quotes")
        if sign is None:
            raise ValueError("a group is $ and a number, or ${name}; write \\$ for the character")
        at = sign.end()
        if digits := sign["digits"]:  # Java takes as many of them as there is a group for
            length = next((n for n in range(len(digits), 1, -1) if int(digits[:n]) <= pattern.groups), 1)
            at -= len(digits) - length
            group: int | str = int(digits[:length])
            known: bool = int(digits[:length]) <= pattern.groups
        else:
            group, known = sign["name"] or "", sign["name"] is None or sign["name"] in pattern.groupindex
        if not known:
            raise ValueError(f"there is no group {group}")
        parts.append((group,) if group != "" else sign["quoted"] or sign["plain"])
    return parts
