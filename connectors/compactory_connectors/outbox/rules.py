"""Rules for the messages of a topic in a relay. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from compactory.nearest import nearest_or_all

__all__ = ["TopicRules", "read_rules"]

OnFailure = Literal["wait", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """``compact``: of the messages with one key in a batch, only the newest is sent.

    ``on_failure``: after a refused message, later messages of its key ``wait`` for it, or are sent (``skip``).
    """

    compact: bool = False
    on_failure: OnFailure = "wait"


def read_rules(section: Mapping[str, Any]) -> tuple[dict[str, TopicRules], list[tuple[str, str]]]:
    """Return the rules by topic of a section of compactory.toml, and problems as pairs of key and text."""
    rules: dict[str, TopicRules] = {}
    problems: list[tuple[str, str]] = []
    names = [field.name for field in fields(TopicRules)]
    for topic, values in section.items():
        if not isinstance(values, dict):
            problems.append((topic, "must be a table such as {compact = true}"))
            continue
        for name, value in values.items():
            if name not in names:
                problems.append((f"{topic}.{name}", f"unknown key{nearest_or_all(name, names)}"))
            elif name == "compact" and not isinstance(value, bool):
                problems.append((f"{topic}.{name}", "must be true or false"))
            elif name == "on_failure" and value not in get_args(OnFailure):
                problems.append((f"{topic}.{name}", 'must be "wait" or "skip"'))
        rules[topic] = TopicRules(**{name: value for name, value in values.items() if name in names})
    return rules, problems
