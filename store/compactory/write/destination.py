"""The topic of a writer: its existence, our rights, its limits and its identity."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka
from compactory.token import Token

__all__ = ["Destination"]

log = logging.getLogger("compactory.writer")

_REQUEST_TIMEOUT = 1.0  # seconds for requests beside the writing
_IDENTITY_AGE = 2.0  # seconds for which the topic's id is trusted
_RECORD_OVERHEAD = 96  # bytes that a record may take beside key and value
_DEFAULT_LIMIT = 1_000_000  # bytes: librdkafka's default of message.max.bytes
_SMALLEST_LIMIT = 1000  # bytes: the smallest value of it that librdkafka takes


class Destination:
    """A topic with its rights, limits and identity. Thread-safe: attributes are replaced, never changed."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.topic = topic
        self._limit = 0  # bytes of the largest record that topic and client take
        self._kafka = kafka
        self.topic_id: str | None = None
        self._checked_at = 0.0  # by the monotonic clock
        self._last_offsets: dict[int, int] = {}  # partition → the last offset that is known to be used

    def prepare(self, timeout: float, *, create: bool) -> dict[str, Any]:
        """Check the topic, which ``create`` creates first; return the producer's properties that follow from it.

        Raises ConfigError where it does not exist or may not be written, Unreachable.
        """
        deadline = time.monotonic() + timeout
        topic = self._kafka.topics([self.topic], timeout).get(self.topic)
        if topic is None and create:
            self._kafka.create_topic(self.topic, config={"cleanup.policy": "compact"}, timeout=timeout)
            while topic is None and time.monotonic() < deadline:  # the broker may take a moment to know it
                topic = self._kafka.topics([self.topic], _REQUEST_TIMEOUT).get(self.topic)
        if topic is None:
            remedy = "create it with cleanup.policy=compact, or give create=True"
            raise ConfigError(self._kafka.absence(self.topic, remedy, _REQUEST_TIMEOUT))
        missing_rights = self._kafka.lacking_rights(
            [self.topic], ["Write"], max(_REQUEST_TIMEOUT, deadline - time.monotonic())
        )
        if missing_rights:
            raise ConfigError(missing_rights)
        ends = self._kafka.high_watermarks(topic.all(), max(_REQUEST_TIMEOUT, deadline - time.monotonic()))
        self._last_offsets = {part.partition: end - 1 for part, end in ends.items()}
        self.topic_id, self._checked_at = topic.topic_id, time.monotonic()
        return self._properties(max(_REQUEST_TIMEOUT, deadline - time.monotonic()))

    def tokens(self, places: Sequence[tuple[int, int]], earlier: Mapping[int, int]) -> list[Token]:
        """Return the tokens of acknowledged records; ``earlier`` is what `last_offsets` returned before the send.

        The topic's id is checked every two seconds at most, and at once where offsets went back. Raises CompactoryError
        if the topic was created again: a token of the former topic would be wrong in the new one.
        """
        went_back = any(offset <= earlier.get(partition, -1) for partition, offset in places)
        last_offsets = dict(self._last_offsets)
        for partition, offset in places:
            last_offsets[partition] = max(offset, last_offsets.get(partition, -1))
        self._last_offsets = last_offsets
        if went_back or time.monotonic() - self._checked_at > _IDENTITY_AGE:
            self._check_identity()
        return [Token(self.topic, partition, offset, self.topic_id) for partition, offset in places]

    def last_offsets(self) -> dict[int, int]:
        """Return the last offset of each partition that is known to be used."""
        return self._last_offsets

    def exists(self) -> bool:
        """Return True if the topic exists. Raises Unreachable, ConfigError."""
        return bool(self._kafka.topics([self.topic], _REQUEST_TIMEOUT))

    def too_large(self, records: Sequence[tuple[bytes, bytes | None]]) -> list[str]:
        """Return the problem of each record that topic or client would not take."""
        sizes = [(key, len(key) + len(value or b"") + _RECORD_OVERHEAD) for key, value in records]
        return [
            f"{key.decode()!r}: the record takes {size} bytes, {self._limit} are the most (max.message.bytes of the"
            " topic, message.max.bytes of the client)"
            for key, size in sizes
            if size > self._limit
        ]

    def _check_identity(self) -> None:
        self._checked_at = time.monotonic()  # also without an answer: the next writes do not wait for it again
        try:
            topic = self._kafka.topics([self.topic], _REQUEST_TIMEOUT).get(self.topic)
        except CompactoryError as error:
            log.debug("topic %r can't be looked at: %s", self.topic, error)
            return
        if topic is not None and topic.topic_id != self.topic_id:
            changed = CompactoryError(f"topic {self.topic!r} was deleted and created again: its records are gone")
            changed.retryable = True
            raise changed

    def _properties(self, timeout: float) -> dict[str, Any]:
        try:
            config = self._kafka.topic_configs([self.topic], timeout).get(self.topic, {})
        except ConfigError:  # no right to read it: the broker will refuse what is too large
            config = {}
        policies = config.get("cleanup.policy", "compact").split(",")
        if policies != ["compact"]:
            log.warning(
                "topic %r has cleanup.policy=%s: Kafka drops entries by age or size; set it to compact:"
                " kafka-configs.sh --alter --topic %s --add-config cleanup.policy=compact",
                *(self.topic, ",".join(policies), self.topic),
            )
        client_limit = int(self._kafka.properties().get("message.max.bytes", _DEFAULT_LIMIT))
        self._limit = max(_SMALLEST_LIMIT, min(client_limit, int(config.get("max.message.bytes", client_limit))))
        # The client never splits a batch, and one that is larger than the topic takes is refused whole.
        return {"message.max.bytes": self._limit}
