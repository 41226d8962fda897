"""``RegexRouter``: another topic, by a regular expression (org.apache.kafka.connect.transforms.RegexRouter)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...javatext.java_regex import java_pattern, replace_first
from ...setting import Setting, text
from ..record import Record
from .transform import Steady

__all__ = ["RegexRouter"]


@dataclass(frozen=True, slots=True)
class RegexRouter(Steady):
    """Where ``regex`` matches the whole topic, the first match of it within is replaced."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="regex", meaning="Java's regular expression for the whole topic", parse=java_pattern),
        Setting(name="replacement", meaning="the topic instead; $1 is a group", parse=text),
    )

    regex: re.Pattern[str]
    replaced: Callable[[str], str]

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> RegexRouter:
        """The transform with these options. Raises ValueError for a replacement that does not fit ``regex``."""
        try:
            return cls(options["regex"], replace_first(options["regex"], options["replacement"]))
        except ValueError as error:
            raise ValueError(f"replacement: {error}") from None

    def apply(self, record: Record) -> Record:
        """``record`` with its new topic."""
        if (dated := record.dated) is not None:
            return replace(record, dated=lambda millis: self._routed(dated(millis)))
        return replace(record, topic=self._routed(record.topic))

    def _routed(self, topic: str) -> str:
        return self.replaced(topic) if self.regex.fullmatch(topic) else topic
