"""Offsets of records as texts: the token of a write that is waited for, and the version of an entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from compactory.errors import ConfigError, WaitTimeout
from compactory.records import Partition, Topic

__all__ = ["Token", "Version", "partition_and_offset", "targets", "unreadable"]

_LARGEST = 2**63 - 1  # of an offset
_DIGITS = 19  # of that number


class Token(NamedTuple):
    """The place of one written record. ``offset`` is the record's own offset.

    A store has it when its position in the *same* topic and partition is beyond ``offset``; progress in any other
    partition never counts. ``topic_id`` is optional: with it, a topic created anew under the name does not satisfy it.
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
        """The partition of the record."""
        return Partition(self.topic, self.partition)

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read ``topic:partition:offset``. Raises ConfigError for anything else."""
        topic, *numbers = text.strip().split(":")
        place = partition_and_offset(numbers)
        if not topic or place is None:
            raise unreadable(text, "a token: expected topic:partition:offset, say terminals:0:42")
        return cls(topic, *place)

    @classmethod
    def from_message(cls, message: Any) -> Token:
        """Return the token of an acknowledged confluent-kafka ``Message`` (of a delivery report)."""
        offset = message.offset()
        if offset is None or offset < 0:
            raise ConfigError("the message has no offset: it was not acknowledged, or the producer runs with acks=0")
        return cls(str(message.topic()), int(message.partition()), int(offset))


class Version(NamedTuple):
    """The record that was read: as text ``TOPICID-PARTITION-OFFSET``, which is the ETag over HTTP without its quotes.

    ``topic_id`` is the topic's name on a Kafka older than 2.8.
    """

    topic_id: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read the text of a version. Raises ConfigError for anything else."""
        topic_id, *numbers = text.strip().strip('"').rsplit("-", 2)
        place = partition_and_offset(numbers)
        if not topic_id or place is None:
            raise unreadable(text, "a version: expected TOPICID-PARTITION-OFFSET, as an ETag has it")
        return cls(topic_id, *place)


def targets(tokens: Iterable[Token], topics: Mapping[str, Topic]) -> dict[Partition, int]:
    """Return the positions at which a reader of ``topics`` sees the records of all tokens.

    Raises ConfigError for a token of a topic that is not read and for what is no token, WaitTimeout for one that
    can't be reached any more because its topic was deleted since.
    """
    positions: dict[Partition, int] = {}
    for token in tokens:
        if not isinstance(token, Token):
            raise ConfigError(
                f"a token is needed, not {type(token).__name__}; a token's text becomes one by Token.parse(text)"
            )
        topic = topics.get(token.topic)
        if topic is None:
            names = ", ".join(sorted(topics))
            raise ConfigError(f"token {token} is of a topic that this store does not read; it reads {names}")
        if token.topic_id and topic.topic_id and token.topic_id != topic.topic_id:
            message = f"token {token} belongs to another topic of that name than the one read: one was deleted since"
            raise WaitTimeout(message, {token.place: token.offset + 1})
        positions[token.place] = max(positions.get(token.place, 0), token.offset + 1)
    return positions


def partition_and_offset(texts: Sequence[str]) -> tuple[int, int] | None:
    """Return a partition and an offset; None where the texts are something else."""
    numbers = [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) <= _DIGITS]
    return (numbers[0], numbers[1]) if len(texts) == len(numbers) == 2 and max(numbers) <= _LARGEST else None


def unreadable(text: str, expected: str) -> ConfigError:
    """Return the error for a text that is not what was expected; a long text is cut."""
    return ConfigError(f"{text if len(text) <= 300 else text[:300] + '…'!r} is not {expected}")
