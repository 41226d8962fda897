"""Where a write went, so that a reader can wait until it sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compactory.errors import ConfigError
from compactory.records import Partition

__all__ = ["Token"]


@dataclass(frozen=True, slots=True)
class Token:
    """The place of one written record. ``offset`` is the record's own offset.

    A store has it when its position in the *same* topic and partition is beyond ``offset``; progress in any other
    partition never counts. ``topic_id`` is optional: with it, a topic created anew under the name does not satisfy.
    Its text is ``topic:partition:offset`` (topic names can't hold a colon).
    """

    topic: str
    partition: int
    offset: int
    topic_id: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"

    @property
    def place(self) -> Partition:
        """The partition that it lies in."""
        return Partition(self.topic, self.partition)

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read ``topic:partition:offset``. Raises ConfigError for anything else."""
        topic, _, rest = text.strip().partition(":")
        partition, _, offset = rest.partition(":")
        if not (topic and partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
            raise ConfigError(f"{text!r} is not a token: expected topic:partition:offset, say terminals:0:42")
        return cls(topic, int(partition), int(offset))

    @classmethod
    def from_message(cls, message: Any) -> Token:
        """Return the token of an acknowledged confluent-kafka ``Message`` (of a delivery report)."""
        offset = message.offset()
        if offset is None or offset < 0:
            raise ConfigError("the message has no offset: it was not acknowledged, or the producer runs with acks=0")
        return cls(str(message.topic()), int(message.partition()), int(offset))
