"""``RegexRouter``, ``Filter`` and predicates (org.apache.kafka.connect.transforms)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from ..javatext.java_regex import java_pattern, replace_first
from ..record.record import Cell, Record
from ..setting import option, required_text
from .transform import Transform, absent, nullable

__all__ = ["Filter", "Predicate", "RecordIsTombstone", "RegexRouter", "TopicNameMatches"]


@dataclass(frozen=True, slots=True)
class Filter(Transform):
    """Drops every record."""

    def apply(self, record: Record) -> None:
        del record


@dataclass(frozen=True, slots=True)
class RegexRouter(Transform):
    """Replaces the first match within the topic if ``regex`` matches the whole topic."""

    regex: re.Pattern[str] = option("Java's regular expression for the whole topic", parse=java_pattern)
    replacement: str = option("the new topic; $1 is a group")

    def __post_init__(self) -> None:
        try:
            replace_first(self.regex, self.replacement)
        except ValueError as error:
            raise ValueError(f"replacement: {error}") from None

    def apply(self, record: Record) -> Record:
        return replace(record, topic=self._routed(record.topic))

    def _routed(self, topic: str) -> str:
        return replace_first(self.regex, self.replacement)(topic) if self.regex.fullmatch(topic) else topic


class Predicate(ABC):
    """The condition of a transform: a frozen dataclass whose fields are its options."""

    __slots__ = ()

    def undecided(self, record: Record) -> Cell | None:
        """Return a cell that is null in some rows only and decides the answer, or None."""
        del record
        return None

    @abstractmethod
    def test(self, record: Record) -> bool:
        """Return True if the condition is true for ``record``."""


@dataclass(frozen=True, slots=True)
class TopicNameMatches(Predicate):
    """The whole topic, as earlier transforms have left it, matches ``pattern``."""

    pattern: re.Pattern[str] = option(
        "Java's regular expression for the whole topic", parse=lambda written: java_pattern(required_text(written))
    )

    def test(self, record: Record) -> bool:
        return self.pattern.fullmatch(record.topic) is not None


@dataclass(frozen=True, slots=True)
class RecordIsTombstone(Predicate):
    """The value is null. Deletions, which Kafka Connect's source does not send, never come through the transforms."""

    def undecided(self, record: Record) -> Cell | None:
        return nullable(record.value)

    def test(self, record: Record) -> bool:
        return absent(record.value)
