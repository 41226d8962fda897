"""The consumer group of a processor, and the topic of its unfinished events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import structlog

from compactory import Change, Directory, GlobalStore
from compactory.errors import CompactoryError, ConfigError, NotReady, Unreachable, WaitTimeout
from compactory.kafka.client import Kafka, KafkaError, KafkaException, Message, Producer, TopicPartition
from compactory.records import Partition, StoreState
from compactory.threads import start_thread
from compactory.token import Token
from compactory_connectors.kafka.consumer_group import Group, Located, Position, at_epoch

from .pending import LARGEST, PAUSED, StoredEvent, group_of, parse
from .processor import Processor

__all__ = ["ProcessorGroup", "StoredEvents"]

log = structlog.get_logger("compactory.process")

_SEND_TIMEOUT = 9.0  # seconds for the offsets of a transaction
_READ_TIMEOUT = 20.0  # seconds; Kafka aborts the transaction of a dead process within 10


class _StoredStates:
    """The stored events without their values. The store's thread writes them, the runner's thread reads them."""

    def __init__(self) -> None:
        self.is_paused = False
        self.waiting: dict[str, StoredEvent] = {}
        self.failed: dict[str, Partition] = {}

    def apply(self, change: Change[Any]) -> None:
        stored = change.new
        if change.key == PAUSED:
            self.is_paused = stored is not None
        if not isinstance(stored, StoredEvent | None):
            return
        self.waiting.pop(change.key, None)
        self.failed.pop(change.key, None)
        if stored is not None and stored.state == "failed":
            self.failed[change.key] = stored.place
        elif stored is not None:
            self.waiting[change.key] = stored.without_value()


class StoredEvents:
    """The topic of unfinished events, which each process reads. Owned by one thread."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self.topic = group_of(name)
        self._kafka = kafka
        directory = Directory("events", topic=self.topic, decode=parse, projection=_StoredStates)
        properties = kafka.properties()  # not `kafka` itself: a closed store ends the requests of its `Kafka`
        self._store = GlobalStore(properties, [directory], missing_topic="wait", start_timeout=30.0)
        self._written: dict[int, Token] = {}

    def start(self) -> None:
        """Create the topic if it is missing, and read it. Raises ConfigError, Unreachable, StartTimeout."""
        config = {"cleanup.policy": "compact", "max.message.bytes": str(LARGEST)}
        if not self._kafka.topics([self.topic]):
            self._kafka.create_topic(self.topic, partitions=1, config=config)
        self._store.start()

    def close(self) -> None:
        self._store.close()

    def write(self, producer: Producer, event: str, stored: StoredEvent | None) -> None:
        """Store an event, or with None remove it, in the producer's transaction."""
        data = None if stored is None else stored.data()
        producer.produce(self.topic, data, event, on_delivery=self._delivered)

    def read_to_the_end(self) -> None:
        """Wait until the topic is read to its end. Raises Unreachable if an open transaction prevents that."""
        try:
            self._store.barrier(_READ_TIMEOUT)
        except WaitTimeout as error:
            raise Unreachable("Kafka", f"topic {self.topic!r} can't be read to its end: {error}") from error

    def is_current(self) -> bool:
        """Return True if every event that this process has written is read back."""
        positions = self._store.positions()
        return self._store.state is StoreState.READY and all(
            positions.get(token.place, 0) > token.offset for token in self._written.values()
        )

    def records(self) -> dict[str, StoredEvent | Mapping[str, Any]]:
        """Return every record that was read: stored events, and what operators have done."""
        return dict(self._store["events"].items())

    def event(self, waiting: StoredEvent) -> StoredEvent | None:
        """Return a waiting event with its value; None until its last attempt is read back."""
        with suppress(NotReady):
            stored: StoredEvent | None = self._store["events"].get(waiting.id)
            if stored is not None and stored.attempts == waiting.attempts:
                return stored
        return None

    @property
    def states(self) -> _StoredStates:
        """The states of the events, and of the processor."""
        states: _StoredStates = self._store["events"].projection
        return states

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            token = Token.from_message(message)
            self._written[token.partition] = token


class ProcessorGroup(Group):
    """A membership whose offsets, with the topic's id, are committed in the transactions of a producer.

    Owned by one thread.
    """

    def __init__(self, kafka: Kafka, processor: Processor) -> None:
        super().__init__(kafka, [processor.topic], group_of(processor.name), {})
        self._kafka = kafka
        self._processor = processor
        self.topic_id: str | None = None

    def send_offsets(self, producer: Producer, positions: Mapping[Partition, Position]) -> None:
        """Commit the offsets in the producer's transaction. Kafka refuses a member that the group has removed.

        Works in a thread, because the client (2.16) ignores the time-out once the coordinator's broker has left the
        cluster. Then the thread is abandoned, and the next producer finds the new coordinator. Raises KafkaException.
        """
        offsets = [
            at_epoch(part, position.read, position.leader_epoch, self.topic_id or "")
            for part, position in positions.items()
        ]
        metadata, result = self._consumer.consumer_group_metadata(), Future[None]()

        def send() -> None:
            try:
                producer.send_offsets_to_transaction(offsets, metadata, _SEND_TIMEOUT)
                result.set_result(None)
            except BaseException as error:  # noqa: BLE001 (raised to the caller)
                result.set_exception(error)

        start_thread("process-offsets", send)
        try:
            result.result(_SEND_TIMEOUT + 1)
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer of the group's coordinator")) from None  # noqa: SLF001

    def commit(self, partitions: Iterable[Partition] | None = None, *, wait: bool = False) -> None:
        """Do nothing: offsets are committed in transactions."""

    def pause_reading(self, is_paused: bool) -> None:
        """Pause or resume reading, and stay in the group."""
        listed = [TopicPartition(*part) for part, position in self.positions.items() if position is not None]
        try:
            (self._consumer.pause if is_paused else self._consumer.resume)(listed)
        except KafkaException as error:
            log.debug("could not pause or resume yet", error=str(error))

    def check_topic(self) -> None:
        """Check that the topic was not created again. Raises Unreachable, which a client without records does not."""
        topic = self._kafka.topics([self._processor.topic]).get(self._processor.topic)
        if topic is not None and self.topic_id not in (None, topic.topic_id):
            self.forget_positions(self.positions)  # the next poll raises the error

    def locate(self, stored_events: StoredEvents, partitions: Sequence[Partition]) -> dict[Partition, Located]:
        """Return the start positions, once no open transaction can change them or add to ``stored_events``.

        Raises Unreachable, ConfigError, CompactoryError if the log lacks the next records.
        """
        name = self._processor.topic
        topic = self._kafka.topics([name]).get(name)
        if topic is None:
            raise ConfigError(f"topic {name!r} does not exist; create it")
        if self.topic_id not in (None, topic.topic_id):
            raise CompactoryError(f"topic {name!r} was deleted and created again; restart the processor")
        self.topic_id = topic.topic_id
        starts, ends = self._kafka.log_starts(partitions), self._kafka.high_watermarks(partitions)
        first = starts if self._processor.start == "earliest" else ends
        committed = self.stored(partitions)  # perhaps of a deleted topic of the same name
        located = {part: Located(first[part], first[part]) for part in partitions}
        for part, item in committed.items():
            if item.metadata not in (None, "", topic.topic_id):
                continue
            if item.offset > ends[part]:
                where = f"partition {part.partition} of {name!r}"
                raise CompactoryError(f"{where} ends at {ends[part]}, before offset {item.offset}: it was truncated")
            offset = max(item.offset, starts[part])
            located[part] = Located(offset, offset, item.leader_epoch if offset == item.offset else None)
        stored_events.read_to_the_end()  # after the offsets: their answer waits for open transactions
        return located
