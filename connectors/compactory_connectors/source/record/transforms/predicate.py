"""Predicates, which say whether a transform is applied (org.apache.kafka.connect.transforms.predicates)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ...javatext.java_regex import java_pattern
from ...setting import Setting, required_text
from ..record import Node, Record
from .transform import Steady, TransformError, absent, nullable

__all__ = ["HasHeaderKey", "Predicate", "RecordIsTombstone", "TopicNameMatches"]


class Predicate(Protocol):
    """One predicate with its options read. Immutable."""

    options: ClassVar[tuple[Setting, ...]]

    def undecided(self, record: Record) -> Node | None:
        """A node whose being null decides the answer, where it can be null."""
        ...

    def test(self, record: Record) -> bool:
        """Whether it is true of ``record``. Raises TransformError where that can't be said."""
        ...


@dataclass(frozen=True, slots=True)
class TopicNameMatches(Steady):
    """The topic, as the transforms before have left it, matches ``pattern`` as a whole."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(
            name="pattern",
            meaning="Java's regular expression for the whole topic",
            parse=lambda written: java_pattern(required_text(written)),
        ),
    )

    pattern: re.Pattern[str]

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> TopicNameMatches:
        """The predicate with these options."""
        return cls(options["pattern"])

    def test(self, record: Record) -> bool:
        """Whether the topic matches."""
        if record.dated is not None:
            raise TransformError(
                "TopicNameMatches can't look at a topic that hangs on the time; put TimestampRouter last"
            )
        return self.pattern.fullmatch(record.topic) is not None


@dataclass(frozen=True, slots=True)
class RecordIsTombstone:
    """The value is null. Deletions, which Kafka Connect's source does not send, never come through the transforms."""

    options: ClassVar[tuple[Setting, ...]] = ()

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> RecordIsTombstone:
        """The predicate, which has no options."""
        del options
        return cls()

    def undecided(self, record: Record) -> Node | None:
        """The value, where it can be null."""
        return nullable(record.value)

    def test(self, record: Record) -> bool:
        """Whether the value is null."""
        return absent(record.value)


@dataclass(frozen=True, slots=True)
class HasHeaderKey(Steady):
    """A header of that name is there. The source's records have none but those that transforms made."""

    options: ClassVar[tuple[Setting, ...]] = (Setting(name="name", meaning="name of the header", parse=required_text),)

    name: str

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> HasHeaderKey:
        """The predicate with these options."""
        return cls(options["name"])

    def test(self, record: Record) -> bool:
        """Whether the header is there."""
        return any(name == self.name for name, _ in record.headers)
