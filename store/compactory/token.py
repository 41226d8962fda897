"""Where a write went, so that a reader can wait until it sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from compactory.errors import ConfigError, WaitTimeout
from compactory.records import Partition, Topic

__all__ = ["Token", "targets"]

_LARGEST = 2**63 - 1  # of an offset
_DIGITS = 19  # of that number


@dataclass(frozen=True, slots=True)
class Token:
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
        """The partition that it lies in."""
        return Partition(self.topic, self.partition)

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read ``topic:partition:offset``. Raises ConfigError for anything else."""
        topic, _, rest = text.strip().partition(":")
        partition, _, offset = rest.partition(":")
        if not (topic and _is_number(partition) and _is_number(offset)):
            shown = text if len(text) <= 300 else f"{text[:300]}…"
            raise ConfigError(f"{shown!r} is not a token: expected topic:partition:offset, say terminals:0:42")
        return cls(topic, int(partition), int(offset))

    @classmethod
    def from_message(cls, message: Any) -> Token:
        """Return the token of an acknowledged confluent-kafka ``Message`` (of a delivery report)."""
        offset = message.offset()
        if offset is None or offset < 0:
            raise ConfigError("the message has no offset: it was not acknowledged, or the producer runs with acks=0")
        return cls(str(message.topic()), int(message.partition()), int(offset))


def targets(tokens: Iterable[Token], topics: Mapping[str, Topic]) -> dict[Partition, int]:
    """Return the positions at which a reader of ``topics`` sees the records of all tokens.

    Raises ConfigError for a token of a topic that is not read and for what is no token, WaitTimeout for one that
    can't be reached any more because its topic was deleted since.
    """
    wanted: dict[Partition, int] = {}
    for token in tokens:
        if not isinstance(token, Token):
            raise ConfigError(
                f"a token is needed, not {type(token).__name__}; a token's text becomes one by Token.parse(text)"
            )
        topic = topics.get(token.topic)
        if topic is None:
            known = ", ".join(sorted(topics))
            raise ConfigError(f"token {token} is of a topic that this store does not read; it reads {known}")
        if token.topic_id and topic.topic_id and token.topic_id != topic.topic_id:
            gone = f"token {token} belongs to another topic of that name than the one read: one was deleted since"
            raise WaitTimeout(gone, {token.place: token.offset + 1})
        wanted[token.place] = max(wanted.get(token.place, 0), token.offset + 1)
    return wanted


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS and int(text) <= _LARGEST
