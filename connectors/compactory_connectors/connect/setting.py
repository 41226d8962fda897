"""A key of a configuration: its meaning, default and values; shared by connectors, converters and transforms. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from compactory.nearest import nearest

__all__ = [
    "Setting",
    "Status",
    "at_least",
    "boolean",
    "find_setting",
    "honoured",
    "member_of",
    "moot",
    "names",
    "nearest",
    "nearest_class",
    "non_empty_names",
    "one_of",
    "option",
    "options_of",
    "percentage",
    "read_options",
    "refused",
    "rejected",
    "required_text",
    "settings_of",
    "switch",
    "text",
    "whole_number",
]


_BLANKS = "".join(map(chr, range(33)))
"""The characters that Java's ``trim`` takes off; Kafka trims every option."""
_WHOLE = re.compile(r"[+-]?[0-9]+")


class Status(Enum):
    """The treatment of a key."""

    HONOURED = "honoured"
    MOOT = "moot"
    REFUSED = "refused"


def text(value: str) -> str:
    """Any text."""
    return value


def required_text(value: str) -> str:
    """Text that is not blank."""
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def names(value: str) -> tuple[str, ...]:
    """A comma separated list; blanks around the names don't count."""
    return tuple(filter(None, (name.strip() for name in value.split(","))))


def non_empty_names(value: str) -> tuple[str, ...]:
    """A comma separated list of at least one name."""
    if not (found := names(value)):
        raise ValueError("must name at least one")
    return found


def boolean(value: str) -> bool:
    """``true`` or ``false``."""
    if (word := value.strip().lower()) not in {"true", "false"}:
        raise ValueError("must be true or false")
    return word == "true"


def switch(value: str) -> bool:
    """``on`` or ``off``."""
    if value not in {"on", "off"}:
        raise ValueError("must be on or off")
    return value == "on"


def at_least(least: int, *, also: int | None = None) -> Callable[[str], int]:
    """A whole number from ``least`` up, or exactly ``also``."""
    rule = f"must be a whole number of at least {least}" + ("" if also is None else f", or {also}")
    return _number(rule, lambda number: number >= least or number == also)


def _number(rule: str, fits: Callable[[int], bool]) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not _WHOLE.fullmatch(value.strip()) or not fits(int(value)):
            raise ValueError(rule)
        return int(value)

    return parse


percentage = _number("must be a whole number from 0 to 100", lambda number: 0 <= number <= 100)
whole_number = _number("must be a whole number", lambda _: True)
"""Negative ones included."""


def member_of(kind: type[Enum]) -> Callable[[str], Any]:
    """A member of an enum by its value, whatever the case of the letters."""
    known = {str(member.value).lower(): member for member in kind}

    def parse(value: str) -> Any:
        if value.lower() not in known:
            choices = ", ".join(str(member.value) for member in kind)
            close = nearest(value, known).removeprefix("; ")
            raise ValueError(f"must be one of {choices}" + (f": {close}" if close else ""))
        return known[value.lower()]

    return parse


def one_of(*allowed: str, otherwise: str = "") -> Callable[[str], str]:
    """One of ``allowed``; ``otherwise`` says why no other value is."""

    def parse(value: str) -> str:
        if value not in allowed:
            choices = (
                " or ".join(repr(item) for item in allowed) if len(allowed) < 3 else "one of " + ", ".join(allowed)
            )
            raise ValueError(f"must be {choices}" + (f": {otherwise}" if otherwise else ""))
        return value

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key, or with a trailing ``.*`` all keys that begin so."""

    name: str
    meaning: str
    default: str | None = None
    parse: Callable[[str], Any] = text
    status: Status = Status.HONOURED
    note: str = ""
    secret: bool = False


def honoured(
    name: str,
    meaning: str,
    default: str | None = None,
    parse: Callable[[str], Any] = text,
    *,
    secret: bool = False,
) -> Setting:
    """A key with an effect."""
    return Setting(name=name, meaning=meaning, default=default, parse=parse, secret=secret)


def moot(name: str, meaning: str, note: str, parse: Callable[[str], Any] = text) -> Setting:
    """A key that is accepted and changes nothing; ``note`` says why."""
    return Setting(name=name, meaning=meaning, parse=parse, status=Status.MOOT, note=note)


def refused(name: str, meaning: str, note: str) -> Setting:
    """A key that is an error; ``note`` says why, and what to do."""
    return Setting(name=name, meaning=meaning, status=Status.REFUSED, note=note)


def option(meaning: str, default: str | None = None, parse: Callable[[str], Any] = text, *, name: str = "") -> Any:
    """A field of a dataclass that a key fills: the key is ``name``, else the field's name with dots in it."""
    return field(metadata={"setting": Setting(name=name, meaning=meaning, default=default, parse=parse)})


def settings_of(kind: Any) -> dict[str, Setting]:
    """The keys that fill the fields of a dataclass, by the fields' names and in their order."""
    made = ((item.name, item.metadata.get("setting")) for item in fields(kind))
    return {name: replace(found, name=found.name or name.replace("_", ".")) for name, found in made if found}


def options_of(kind: Any) -> tuple[Setting, ...]:
    """The keys that fill the fields of a dataclass, in their order."""
    return tuple(settings_of(kind).values())


def find_setting(key: str, settings: Sequence[Setting]) -> Setting | None:
    """The entry of ``key``, exact before prefix, the first prefix that fits; None when the key is unknown."""
    exact = next((item for item in settings if item.name == key), None)
    prefixes = ((item.name[:-1], item) for item in settings if item.name.endswith(".*"))
    return exact or next((item for prefix, item in prefixes if key.startswith(prefix) and key != prefix), None)


def read_options(
    class_name: str, options: Iterable[Setting], written: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The values of a class's options in their order, and every problem, which begins with the option's name."""
    known = {item.name: item for item in options}
    short = class_name.rsplit(".", 1)[-1]
    problems = [f"{key}: unknown option of {short}{nearest(key, known)}" for key in sorted(written.keys() - known)]
    values: dict[str, Any] = {}
    for name, item in known.items():
        value = written.get(name, item.default)
        if value is None:
            problems.append(f"{name}: missing; {item.meaning}")
            continue
        try:
            values[name] = item.parse(value.strip(_BLANKS))
        except ValueError as error:
            problems.append(f"{name}: {rejected(error, '' if item.secret else f', not {value!r}')}")
    return values, problems


def nearest_class(name: str, known: Iterable[str]) -> str:
    """``nearest`` for Java classes: a name without its package counts as its full name."""
    by_short = {full.rsplit(".", 1)[-1]: full for full in known}
    close = difflib.get_close_matches(name.rsplit(".", 1)[-1], list(by_short), 1)
    return f"; did you mean {by_short[close[0]]}?" if close else ""


def rejected(error: ValueError, written: str) -> str:
    """A parser's complaint, with ``written`` (such as ``, not 'x'``) put before its reason."""
    rule, colon, reason = str(error).partition(": ")
    return f"{rule}{written}{colon}{reason}"
