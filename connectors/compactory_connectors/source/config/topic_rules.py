"""``topic.creation.*``: partitions, replicas and configuration of topics that the source creates. Pure.

Source: ``SourceConnectorConfig`` and ``TopicCreationGroup`` of Kafka Connect (KIP-158): the first group that includes a
topic and does not exclude it decides; the group ``default`` takes the rest, and fills the gaps of other groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compactory_connectors.connect.setting import at_least, honoured, nearest, read_options

from .selection import patterns

__all__ = ["TopicCreation", "TopicRules", "read_rules", "topic_prefix"]

_LEGAL = re.compile(r"[a-zA-Z0-9._-]*")
_LONGEST = 249


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreation:
    """Partitions, replicas and configuration of a topic that the source creates. -1: the broker's default."""

    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def policy(self) -> str:
        """The cleanup policy that the connector asks for; compact unless it says otherwise."""
        return self.configs.get("cleanup.policy", "compact")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    include: tuple[re.Pattern[str], ...]
    exclude: tuple[re.Pattern[str], ...]
    creation: TopicCreation

    def takes(self, topic: str) -> bool:
        """Return True if the topic is of this group."""
        included = any(pattern.fullmatch(topic) for pattern in self.include)
        return included and not any(pattern.fullmatch(topic) for pattern in self.exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """The groups in their order and the default. ``create`` False: topics must be there already."""

    default: TopicCreation = field(default_factory=TopicCreation)
    groups: tuple[_Group, ...] = ()
    create: bool = True

    def of(self, topic: str) -> TopicCreation:
        """Return the settings of this topic."""
        return next((group.creation for group in self.groups if group.takes(topic)), self.default)


def topic_prefix(value: str) -> str:
    """Return a text that a topic's name may begin with."""
    text = value.strip()
    if len(text) > _LONGEST:
        raise ValueError(f"must be of {_LONGEST} characters at the most")
    if not _LEGAL.fullmatch(text):
        raise ValueError("must hold letters of ASCII, digits, . _ and - only")
    return text


def read_rules(groups: Iterable[str], written: Mapping[str, str], *, create: bool) -> tuple[TopicRules, list[str]]:
    """Return the rules from the keys below ``topic.creation.`` (prefix removed), and every problem found."""
    problems: list[str] = []
    default = _group("default", written, TopicCreation(), problems, "").creation
    listed = [name for name in dict.fromkeys(groups) if name != "default"]
    named = tuple(_group(name, written, default, problems) for name in listed)
    for key in written:
        alias = key.partition(".")[0]
        if alias not in {"default", "enable", "groups", *listed}:
            problems.append(f"topic.creation.{key}: {alias} is not in topic.creation.groups{nearest(alias, listed)}")
    return TopicRules(default=default, groups=named, create=create), problems


def _group(
    name: str, written: Mapping[str, str], default: TopicCreation, problems: list[str], include: str | None = None
) -> _Group:
    """Return the group ``name``. ``include``: the topics that it has where it does not say so, None: it must."""
    number = at_least(1, also=-1)
    options = {
        "include": honoured("include", "name the topics of the group by regular expressions", include, patterns),
        "exclude": honoured("exclude", "topics of other groups", "", patterns),
        "partitions": honoured("partitions", "partitions", str(default.partitions), number),
        "replication.factor": honoured("replication.factor", "replicas", str(default.replication_factor), number),
    }
    own = {key.removeprefix(f"{name}."): value for key, value in written.items() if key.startswith(f"{name}.")}
    option_texts = {key: value for key, value in own.items() if key in options and value.strip()}
    values, option_problems = read_options("topic.creation", options.values(), option_texts)
    problems += [f"topic.creation.{name}.{problem}" for problem in option_problems]
    creation = TopicCreation(
        partitions=values.get("partitions", -1),
        replication_factor=values.get("replication.factor", -1),
        configs={**default.configs, **{key: value for key, value in own.items() if key not in options}},
    )
    return _Group(include=values.get("include", ()), exclude=values.get("exclude", ()), creation=creation)
