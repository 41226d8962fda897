"""Which record an entry came from, so that a decision can be checked against it later."""

from __future__ import annotations

from typing import NamedTuple

from compactory.errors import ConfigError

__all__ = ["Version"]


class Version(NamedTuple):
    """The record that was read: as text ``TOPICID-PARTITION-OFFSET``, which is the ETag over HTTP without its quotes.

    ``topic_id`` is the topic's name on a Kafka older than 2.8. `View.versioned` gives one, `GlobalStore.at` takes it.
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
        whole = all(each.isascii() and each.isdigit() and len(each) < 19 for each in numbers)
        if not (topic_id and whole and len(numbers) == 2):
            raise ConfigError(f"{text[:300]!r} is not a version: expected TOPICID-PARTITION-OFFSET, as an ETag has it")
        return cls(topic_id, *map(int, numbers))
