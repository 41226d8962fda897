r"""Java's regular expressions in Python: ``java.util.regex.Pattern`` and ``Matcher.replaceFirst``.

Allowed are the constructs that both languages write alike: characters, ``.``, ``^``, ``$``, ``|``, classes such as
``[^a-z_]``, ``\d \w \s \t \n \r \f`` and their opposites, a backslash before a sign, groups (plain, named, ``(?:…)``),
look-ahead, repetitions, and flags at the start. Everything else is refused by its name. Classes such as ``\w`` are
those of ASCII, as in Java without flags.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["java_pattern", "replace_first"]

_FLAGS = re.compile(r"\(\?([a-zA-Z]+)\)")
_NAME = "[a-zA-Z][a-zA-Z0-9]*"
_ESCAPE = r"\\(?:[dDsSwWtnrf]|[^a-zA-Z0-9])"
_CONSTRUCT = re.compile(
    rf"""
    \(\?<(?P<group>{_NAME})>
    | \[\^?\]?(?:{_ESCAPE}|(?!&&|--|~~|\|\|)[^\\\[\]])*\]
    | {_ESCAPE}
    | \(\?[:=!]
    | \((?!\?)
    | \{{[0-9]+(?:,[0-9]*)?\}}
    | [^\\\[{{(]
    """,
    re.VERBOSE | re.DOTALL,
)
_SIGN = re.compile(rf"\\(?P<quoted>.)|\$\{{(?P<name>{_NAME})\}}|\$(?P<digits>[0-9]+)|(?P<plain>[^\\$]+)", re.DOTALL)


def java_pattern(text: str) -> re.Pattern[str]:
    """Return ``Pattern.compile(text)``. Raises ValueError that names the construct that is not supported."""
    flags = _FLAGS.match(text)
    letters = set(flags[1]) if flags else set()
    if unknown := letters - set("imsx"):
        raise ValueError(f"flag {min(unknown)} is not supported")
    rewritten, position = "", flags.end() if flags else 0
    while position < len(text):
        construct = _CONSTRUCT.match(text, position)
        if construct is None:
            raise ValueError(_unsupported(text[position:]))
        rewritten += f"(?P<{construct['group']}>" if construct["group"] else construct[0]
        position = construct.end()
    try:
        return re.compile(rewritten, re.ASCII | sum(getattr(re, letter.upper()) for letter in letters))
    except (re.error, OverflowError) as error:
        raise ValueError(f"is not a regular expression that is supported ({error})") from None


def _unsupported(remainder: str) -> str:
    if remainder == "\\":
        return "ends with a backslash"
    if remainder[0] == "\\":
        return f"{remainder[:2]} is not supported; write the characters out, as a class such as [a-z] or with \\ before"
    if remainder[0] == "[":
        closed = "]" in remainder
        return "classes within classes, &&, -- and \\Q are not supported" if closed else "a class is not closed"
    if remainder[0] == "{":
        return "a brace must be a repetition such as {2,3}; write \\{ for the character"
    return f"a construct that begins with {remainder[:4]} is not supported"


def replace_first(pattern: re.Pattern[str], replacement: str) -> Callable[[str], str]:
    """Return ``Matcher.replaceFirst``: ``$1`` and ``${name}`` are groups; a backslash quotes the character after it.

    Raises ValueError for a group that the pattern does not have, and for a dangling ``$`` or backslash.
    """
    parts = _parts_of_replacement(pattern, replacement)

    def replace(text: str) -> str:
        match = pattern.search(text)
        if match is None:
            return text
        inserted = "".join(part if isinstance(part, str) else match[part[0]] or "" for part in parts)
        return text[: match.start()] + inserted + text[match.end() :]

    return replace


def _parts_of_replacement(pattern: re.Pattern[str], replacement: str) -> list[str | tuple[int | str]]:
    """Return texts, and groups in tuples."""
    parts: list[str | tuple[int | str]] = []
    position = 0
    while position < len(replacement):
        sign = _SIGN.match(replacement, position)
        if sign is None and replacement[position] == "\\":
            raise ValueError("ends with a backslash, which must stand before the character that it quotes")
        if sign is None:
            raise ValueError("a group is $ and a number, or ${name}; write \\$ for the character")
        position = sign.end()
        if digits := sign["digits"]:  # Java takes as many of them as there is a group for
            length = next((n for n in range(len(digits), 1, -1) if int(digits[:n]) <= pattern.groups), 1)
            position -= len(digits) - length
            number = int(digits[:length])
            if number > pattern.groups:
                raise ValueError(f"there is no group {number}")
            parts.append((number,))
        elif name := sign["name"]:
            if name not in pattern.groupindex:
                raise ValueError(f"there is no group {name}")
            parts.append((name,))
        else:
            parts.append(sign["quoted"] or sign["plain"])
    return parts
