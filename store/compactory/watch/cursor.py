"""The positions of a watch, as a value and as a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactory.token import partition_and_offset, unreadable

__all__ = ["Cursor"]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a watch stands: every change of a record before the next offset of its partition was seen, and none behind.

    ``topic_id`` is None on a Kafka older than 2.8. As text it is ``TOPICID;0:42,1:17``. Immutable.
    """

    topic_id: str | None
    positions: Mapping[int, int]
    """Partition → next offset."""

    def __str__(self) -> str:
        return f"{self.topic_id or ''};{','.join(f'{part}:{at}' for part, at in sorted(self.positions.items()))}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read the text of a cursor. Raises ConfigError for anything else."""
        topic_id, separator, rest = text.strip().partition(";")
        parts = rest.split(",") if rest else []
        places = [place for part in parts if (place := partition_and_offset(part.split(":"))) is not None]
        if not separator or len(places) < len(parts):
            raise unreadable(text, "a cursor: expected TOPICID;PARTITION:OFFSET,…, say 'abc;0:42,1:17'")
        return cls(topic_id or None, dict(places))
