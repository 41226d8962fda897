r"""``java.util.regex``: patterns rewritten for Python's ``re``, and the replacements of ``Matcher.replaceFirst``.

What the two write alike is left alone; what Python lacks (intersections of classes, ``\G``, ``\X``, blocks and scripts
of Unicode, flags in the middle of a pattern) is refused. Classes are those of ASCII, as in Java without flags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

__all__ = ["java_pattern", "replace_first"]

_PROPERTIES: Mapping[str, str] = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r" \t\n\x0b\f\r",
    "ASCII": r"\x00-\x7f",
}
_HORIZONTAL = r" \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000"
_VERTICAL = r"\n\x0b\f\r\x85\u2028\u2029"
_CLASSES: Mapping[str, str] = {"h": _HORIZONTAL, "v": _VERTICAL}
_ESCAPES: Mapping[str, str] = {"z": r"\Z", "Z": r"(?=\n?\Z)", "e": r"\x1b", "R": f"(?:\\r\\n|[{_VERTICAL}])"}
_ALIKE = "0123456789dDsSwWbBAtnrfaxu"
_REPETITION = re.compile(r"\{\d+(?:,\d*)?\}", re.ASCII)
_BEGINNING = re.compile(r"\(\?([a-zA-Z]+)\)")


def java_pattern(text: str) -> re.Pattern[str]:
    """``Pattern.compile``. Raises ValueError, saying what is wrong or not supported."""
    flags = ""
    if found := _BEGINNING.match(text):
        flags, text = found[1], text[found.end() :]
        if unknown := set(flags) - set("imsx"):
            raise ValueError(f"flag {min(unknown)} is not supported")
    rewritten = _Rewriter(text).pattern()
    try:
        return re.compile(rewritten, re.ASCII | sum(getattr(re, flag.upper()) for flag in set(flags)))
    except (re.error, OverflowError) as error:
        raise ValueError(f"is not a regular expression that is supported ({error})") from None


class _Rewriter:
    """Goes through a pattern once, piece by piece."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def pattern(self) -> str:
        """The whole pattern as Python writes it."""
        parts: list[str] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "\\":
                parts.append(self._escape(inside=False))
            elif character == "[":
                parts.append(self._class())
            elif self._text.startswith("(?", self._at):
                parts.append(self._group())
            elif character == "{":
                parts.append(self._repetition())
            else:
                parts.append(character)
                self._at += 1
        return "".join(parts)

    def _group(self) -> str:
        if found := re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>").match(self._text, self._at):
            self._at = found.end()
            return f"(?P<{found[1]}>"
        if found := re.compile(r"\(\?(?:[:=!>]|<[=!]|[imsx]+:)").match(self._text, self._at):
            self._at = found.end()
            return found[0]
        raise ValueError(f"what begins with {self._text[self._at : self._at + 4]} is not supported")

    def _repetition(self) -> str:
        found = _REPETITION.match(self._text, self._at)
        if found is None:
            raise ValueError("a brace must be a repetition such as {2,3}; write \\{ for the character")
        self._at = found.end()
        return found[0]

    def _class(self) -> str:
        parts = ["["]
        self._at += 1
        if self._text.startswith("^", self._at):
            parts.append("^")
            self._at += 1
        first = True
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "]" and not first:
                self._at += 1
                return "".join([*parts, "]"])
            if character == "[" or self._text.startswith(("&&", "--"), self._at):
                raise ValueError("classes within classes, && and -- are not supported")
            if character == "\\":
                parts.append(self._escape(inside=True))
            else:
                # Python warns of what looks like a set operation
                parts.append(f"\\{character}" if character in "]|~&" else character)
                self._at += 1
            first = False
        raise ValueError("a class is not closed")

    def _escape(self, *, inside: bool) -> str:
        letter = self._text[self._at + 1 : self._at + 2]
        if letter == "Q":
            return self._quoted()
        if letter in {"p", "P"}:
            return self._property(inside=inside, negated=letter == "P")
        if letter == "k":
            return self._reference()
        self._at += 2
        if letter in _CLASSES:
            return _CLASSES[letter] if inside else f"[{_CLASSES[letter]}]"
        if letter in _ESCAPES and not (inside and letter != "e"):
            return _ESCAPES[letter]
        if not letter:
            raise ValueError("ends with a backslash")
        if (letter.isascii() and letter.isalnum() and letter not in _ALIKE) or (letter == "0" or self._braced(letter)):
            raise ValueError(f"\\{letter} is not supported")
        return f"\\{letter}"

    def _braced(self, letter: str) -> bool:
        return letter == "x" and self._text.startswith("{", self._at)

    def _quoted(self) -> str:
        end = self._text.find("\\E", self._at)
        stop = end if end >= 0 else len(self._text)
        quoted = self._text[self._at + 2 : stop]
        self._at = stop + 2
        return re.escape(quoted)

    def _property(self, *, inside: bool, negated: bool) -> str:
        found = re.compile(r"\\[pP]\{(\w+)\}").match(self._text, self._at)
        if found is None or found[1] not in _PROPERTIES or (inside and negated):
            written = found[0] if found else self._text[self._at : self._at + 3]
            raise ValueError(f"{written} is not supported; write the class out")
        self._at = found.end()
        letters = _PROPERTIES[found[1]]
        return letters if inside else f"[{'^' if negated else ''}{letters}]"

    def _reference(self) -> str:
        found = re.compile(r"\\k<([a-zA-Z][a-zA-Z0-9]*)>").match(self._text, self._at)
        if found is None:
            raise ValueError("\\k needs the name of a group: \\k<name>")
        self._at = found.end()
        return f"(?P={found[1]})"


def replace_first(pattern: re.Pattern[str], replacement: str) -> Callable[[str], str]:
    """``Matcher.replaceFirst``: ``$1`` and ``${name}`` are groups, a backslash takes the meaning from what follows.

    Raises ValueError for a group that the pattern has not, and for a dangling ``$`` or backslash.
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
        if replacement[at] == "\\":
            if at + 1 == len(replacement):
                raise ValueError("ends with a backslash, which must stand before what it quotes")
            parts.append(replacement[at + 1])
            at += 2
        elif replacement[at] == "$":
            group, at = _group(pattern, replacement, at + 1)
            parts.append((group,))
        else:
            parts.append(replacement[at])
            at += 1
    return parts


def _group(pattern: re.Pattern[str], replacement: str, at: int) -> tuple[int | str, int]:
    if found := re.compile(r"\{([a-zA-Z][a-zA-Z0-9]*)\}").match(replacement, at):
        if found[1] not in pattern.groupindex:
            raise ValueError(f"there is no group {found[1]}")
        return found[1], found.end()
    if not replacement[at : at + 1].isascii() or not replacement[at : at + 1].isdigit():
        raise ValueError("a group is $ and a number, or ${name}; write \\$ for the character")
    number = int(replacement[at])
    if number > pattern.groups:
        raise ValueError(f"there is no group {number}")
    at += 1
    while re.match("[0-9]", replacement[at:]) and number * 10 + int(replacement[at]) <= pattern.groups:
        number = number * 10 + int(replacement[at])
        at += 1
    return number, at
