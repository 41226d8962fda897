"""``TimestampRouter``: a topic by the time (org.apache.kafka.connect.transforms.TimestampRouter)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...javatext.date_format import DateFormat
from ...setting import Setting, text
from ..record import Record
from .transform import Steady

__all__ = ["TimestampRouter"]

_WARNING = (
    "TimestampRouter takes the time at which a record is sent: a row's records end up in several topics, and a"
    " deletion goes to the topic of its own time (Kafka Connect's records of this source have no time, so it fails)"
)


@dataclass(frozen=True, slots=True)
class TimestampRouter(Steady):
    """The topic by the time at which the record is sent, for the source's records have none of their own."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(
            name="topic.format",
            meaning="the topic, with ${topic} and ${timestamp} in it",
            default="${topic}-${timestamp}",
            parse=text,
        ),
        Setting(
            name="timestamp.format", meaning="SimpleDateFormat pattern, in UTC", default="yyyyMMdd", parse=DateFormat
        ),
    )

    topic: str
    timestamp: DateFormat

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> TimestampRouter:
        """The transform with these options."""
        return cls(options["topic.format"], options["timestamp.format"])

    def apply(self, record: Record) -> Record:
        """``record`` with a topic that hangs on the time, and a warning."""
        return replace(record, dated=self._dated(record), warnings=(*record.warnings, _WARNING))

    def _dated(self, record: Record) -> Callable[[int], str]:
        before = record.dated or (lambda _: record.topic)

        def topic(millis: int) -> str:
            routed = self.topic.replace("${topic}", before(millis))
            return routed.replace("${timestamp}", self.timestamp.format(millis))

        return topic
