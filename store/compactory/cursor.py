"""Where a watch stands in its topic, so that another process can go on from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactory.errors import ConfigError

__all__ = ["Cursor"]


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next offset of every partition: every change of a record before it was seen, and none behind.

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
        pairs = [pair.partition(":") for pair in rest.split(",")] if rest else []
        numbers = [number for part, _, at in pairs for number in (part, at)]
        if not separator or not all(number.isascii() and number.isdigit() and len(number) < 20 for number in numbers):
            raise ConfigError(
                f"{text[:300]!r} is not a cursor: expected TOPICID;PARTITION:OFFSET,…, say 'abc;0:42,1:17'"
            )
        return cls(topic_id or None, {int(part): int(at) for part, _, at in pairs})
