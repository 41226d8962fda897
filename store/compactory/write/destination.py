"""The topic that a writer writes to: does it exist, may we, what does it take, is it still the same one."""

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

_ASK = 1.0  # seconds for questions beside the writing
_IDENTITY_AGE = 2.0  # seconds for which the answer to "which topic goes by the name" is trusted
_OVERHEAD = 96  # bytes that a record may take beside key and value
_CLIENTS_OWN = 1_000_000  # librdkafka's default of message.max.bytes
_LEAST = 1000  # and the least that it can be set to


class Destination:
    """The facts about one topic. Thread-safe: they are replaced, never changed."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.topic = topic
        self._limit = 0  # bytes of the largest record that topic and client take
        self._kafka = kafka
        self.topic_id: str | None = None
        self._looked_at = 0.0  # by the monotonic clock
        self._ends: dict[int, int] = {}  # partition → the last offset that is known to be taken there

    def look(self, timeout: float, *, create: bool) -> dict[str, Any]:
        """Look at the topic, made first where asked for; return the producer's properties that follow.

        Raises ConfigError where it does not exist or may not be written, Unreachable.
        """
        deadline = time.monotonic() + timeout
        found = self._kafka.topics([self.topic], timeout).get(self.topic)
        if found is None and create:
            self._kafka.create_topic(self.topic, config={"cleanup.policy": "compact"}, timeout=timeout)
            while found is None and time.monotonic() < deadline:  # the broker may take a moment to know it
                found = self._kafka.topics([self.topic], _ASK).get(self.topic)
        if found is None:
            remedy = "create it with cleanup.policy=compact, or give create=True"
            raise ConfigError(self._kafka.absence(self.topic, remedy, _ASK))
        lacking = self._kafka.lacking_rights([self.topic], ["Write"], max(_ASK, deadline - time.monotonic()))
        if lacking:
            raise ConfigError(lacking)
        ends = self._kafka.high_watermarks(found.all(), max(_ASK, deadline - time.monotonic()))
        self._ends = {place.partition: end - 1 for place, end in ends.items()}
        self.topic_id, self._looked_at = found.topic_id, time.monotonic()
        return self._properties(max(_ASK, deadline - time.monotonic()))

    def tokens(self, places: Sequence[tuple[int, int]], before: Mapping[int, int]) -> list[Token]:
        """Return the tokens of acknowledged records; ``before`` is what `ends` said before they were sent.

        Whether the name still stands for the same topic is asked every two seconds at most, and at once where offsets
        went back. Raises CompactoryError where it does not: a token of the one would mislead in the other.
        """
        went_back = any(offset <= before.get(partition, -1) for partition, offset in places)
        ends = dict(self._ends)
        for partition, offset in places:
            ends[partition] = max(offset, ends.get(partition, -1))
        self._ends = ends
        if went_back or time.monotonic() - self._looked_at > _IDENTITY_AGE:
            self._check_identity()
        return [Token(self.topic, partition, offset, self.topic_id) for partition, offset in places]

    def ends(self) -> dict[int, int]:
        """Return the last offset of each partition that is known to be taken."""
        return self._ends

    def exists(self) -> bool:
        """Ask whether the topic is there. Raises Unreachable, ConfigError."""
        return bool(self._kafka.topics([self.topic], _ASK))

    def too_large(self, records: Sequence[tuple[bytes, bytes | None]]) -> list[str]:
        """Return the problem of each record that topic or client would not take."""
        room = self._limit - _OVERHEAD
        return [
            f"{key.decode()!r}: the record takes {len(key) + len(value or b'') + _OVERHEAD} bytes, {self._limit} are"
            " the most (max.message.bytes of the topic, message.max.bytes of the client)"
            for key, value in records
            if len(key) + len(value or b"") > room
        ]

    def _check_identity(self) -> None:
        self._looked_at = time.monotonic()  # also without an answer: the next writes do not wait for it again
        try:
            found = self._kafka.topics([self.topic], _ASK).get(self.topic)
        except CompactoryError as error:
            log.debug("topic %r can't be looked at: %s", self.topic, error)
            return
        if found is not None and found.topic_id != self.topic_id:
            changed = CompactoryError(f"topic {self.topic!r} was deleted and created again: its records are gone")
            changed.retryable = True
            raise changed

    def _properties(self, timeout: float) -> dict[str, Any]:
        try:
            config = self._kafka.topic_configs([self.topic], timeout).get(self.topic, {})
        except ConfigError:  # no right to ask: the broker will say
            config = {}
        policies = config.get("cleanup.policy", "compact").split(",")
        if policies != ["compact"]:
            log.warning(
                "topic %r has cleanup.policy=%s: Kafka drops entries by age or size; set it to compact:"
                " kafka-configs.sh --alter --topic %s --add-config cleanup.policy=compact",
                *(self.topic, ",".join(policies), self.topic),
            )
        given = int(self._kafka.properties().get("message.max.bytes", _CLIENTS_OWN))
        self._limit = max(_LEAST, min(given, int(config.get("max.message.bytes", given))))
        # The client never splits a batch, and one that is larger than the topic takes is refused whole.
        return {"message.max.bytes": self._limit}
