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
    "JAVA_BLANKS",
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
    "rejection",
    "required_text",
    "settings_of",
    "switch",
    "text",
    "whole_number",
]


JAVA_BLANKS = "".join(map(chr, range(33)))
"""The characters that Java's ``trim`` takes off. Kafka trims every option."""
_WHOLE = re.compile(r"[+-]?[0-9]+")


class Status(Enum):
    """The treatment of a key."""

    HONOURED = "honoured"
    MOOT = "moot"
    REFUSED = "refused"


def text(value: str) -> str:
    """Return the text as it is."""
    return value


def required_text(value: str) -> str:
    """Return a text that is not blank."""
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def names(value: str) -> tuple[str, ...]:
    """Return the names of a comma separated list, without the blanks around them."""
    return tuple(filter(None, (name.strip() for name in value.split(","))))


def non_empty_names(value: str) -> tuple[str, ...]:
    """Return the names of a comma separated list, at least one."""
    if not (listed := names(value)):
        raise ValueError("must name at least one")
    return listed


def boolean(value: str) -> bool:
    """Return the value of ``true`` or ``false``."""
    if (word := value.strip().lower()) not in {"true", "false"}:
        raise ValueError("must be true or false")
    return word == "true"


def switch(value: str) -> bool:
    """Return True for ``on``, False for ``off``."""
    if value not in {"on", "off"}:
        raise ValueError("must be on or off")
    return value == "on"


def at_least(minimum: int, *, also: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``minimum`` up, and of ``also``."""
    rule = f"must be a whole number of at least {minimum}" + ("" if also is None else f", or {also}")
    return _number_parser(rule, lambda number: number >= minimum or number == also)


def _number_parser(rule: str, fits: Callable[[int], bool]) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not _WHOLE.fullmatch(value.strip()) or not fits(int(value)):
            raise ValueError(rule)
        return int(value)

    return parse


percentage = _number_parser("must be a whole number from 0 to 100", lambda number: 0 <= number <= 100)
whole_number = _number_parser("must be a whole number", lambda _: True)
"""Negative ones included."""


def member_of(kind: type[Enum]) -> Callable[[str], Any]:
    """Return a parser of the members of an enum by their values; the case of letters does not count."""
    members = {str(member.value).lower(): member for member in kind}

    def parse(value: str) -> Any:
        if value.lower() not in members:
            choices = ", ".join(str(member.value) for member in kind)
            close = nearest(value, members).removeprefix("; ")
            raise ValueError(f"must be one of {choices}" + (f": {close}" if close else ""))
        return members[value.lower()]

    return parse


def one_of(*allowed: str, otherwise: str = "") -> Callable[[str], str]:
    """Return a parser of the ``allowed`` texts; ``otherwise`` says why no other is."""

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
    """A key of a configuration, or with a trailing ``.*`` all keys that begin so."""

    name: str
    meaning: str
    default: str | None = None
    parse: Callable[[str], Any] = text
    status: Status = Status.HONOURED
    note: str = ""
    secret: bool = False


def honoured(
    name: str, meaning: str, default: str | None = None, parse: Callable[[str], Any] = text, *, secret: bool = False
) -> Setting:
    """Return the setting of a key with an effect."""
    return Setting(name=name, meaning=meaning, default=default, parse=parse, secret=secret)


def moot(name: str, meaning: str, note: str, parse: Callable[[str], Any] = text) -> Setting:
    """Return the setting of a key that is accepted and changes nothing; ``note`` says why."""
    return Setting(name=name, meaning=meaning, parse=parse, status=Status.MOOT, note=note)


def refused(name: str, meaning: str, note: str) -> Setting:
    """Return the setting of a key that is an error; ``note`` says why, and what to do."""
    return Setting(name=name, meaning=meaning, status=Status.REFUSED, note=note)


def option(meaning: str, default: str | None = None, parse: Callable[[str], Any] = text, *, name: str = "") -> Any:
    """Return a field of a dataclass that a key fills: ``name``, else the field's name with dots in it."""
    return field(metadata={"setting": Setting(name=name, meaning=meaning, default=default, parse=parse)})


def settings_of(kind: Any) -> dict[str, Setting]:
    """Return the keys that fill the fields of a dataclass, by the fields' names and in their order."""
    settings = ((item.name, item.metadata.get("setting")) for item in fields(kind))
    return {
        name: replace(setting, name=setting.name or name.replace("_", ".")) for name, setting in settings if setting
    }


def options_of(kind: Any) -> tuple[Setting, ...]:
    """Return the keys that fill the fields of a dataclass, in their order."""
    return tuple(settings_of(kind).values())


def find_setting(key: str, settings: Sequence[Setting]) -> Setting | None:
    """Return the setting of ``key``: that of its name, else the first of a prefix of it; None for an unknown key."""
    exact = next((item for item in settings if item.name == key), None)
    prefixes = ((item.name[:-1], item) for item in settings if item.name.endswith(".*"))
    return exact or next((item for prefix, item in prefixes if key.startswith(prefix) and key != prefix), None)


def read_options(
    class_name: str, options: Iterable[Setting], written: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a class's options in their order, and all problems, each after the option's name."""
    by_name = {item.name: item for item in options}
    short = class_name.rsplit(".", 1)[-1]
    problems = [f"{key}: unknown option of {short}{nearest(key, by_name)}" for key in sorted(written.keys() - by_name)]
    values: dict[str, Any] = {}
    for name, item in by_name.items():
        value = written.get(name, item.default)
        if value is None:
            problems.append(f"{name}: missing; {item.meaning}")
            continue
        try:
            values[name] = item.parse(value.strip(JAVA_BLANKS))
        except ValueError as error:
            problems.append(f"{name}: {rejection(error, '' if item.secret else f', not {value!r}')}")
    return values, problems


def nearest_class(name: str, class_names: Iterable[str]) -> str:
    """Return ``nearest`` for Java classes: a name without its package counts as its full name."""
    by_short = {full.rsplit(".", 1)[-1]: full for full in class_names}
    close = difflib.get_close_matches(name.rsplit(".", 1)[-1], list(by_short), 1)
    return f"; did you mean {by_short[close[0]]}?" if close else ""


def rejection(error: ValueError, written: str) -> str:
    """Return the text of a parser's error with ``written`` (such as ``, not 'x'``) before its reason."""
    rule, colon, reason = str(error).partition(": ")
    return f"{rule}{written}{colon}{reason}"
