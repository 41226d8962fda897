"""The consumer group of a processor: where partitions go on, and what is kept of their events that are not done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue

import structlog

from compactory import Change, Directory, GlobalStore
from compactory.errors import CompactoryError, ConfigError, NotReady, Unreachable, WaitTimeout
from compactory.kafka.client import Kafka, KafkaError, KafkaException, Message, Producer, TopicPartition
from compactory.records import Partition, StoreState
from compactory.threads import start_thread
from compactory.token import Token
from compactory_connectors.kafka.consumer_group import Group, Located, Position, at_epoch

from .pending import LARGEST, Parked, group_of
from .processor import Processor

__all__ = ["KeptEvents", "Members"]

log = structlog.get_logger("compactory.process")

_SENDING = 9.0  # seconds for the offsets of a transaction
_SECONDS = 20.0  # Kafka ends the transaction of a process that died within 10


class _KeptStates:
    """The kept events without their values. The store's thread writes it, the runner's thread reads it."""

    def __init__(self) -> None:
        self.waiting: dict[str, Parked] = {}
        self.failed: dict[str, Partition] = {}
        self.changed: SimpleQueue[str] = SimpleQueue()

    def apply(self, change: Change[Parked]) -> None:
        """Take a change of the topic."""
        parked = change.new
        self.waiting.pop(change.key, None)
        self.failed.pop(change.key, None)
        if parked is not None and parked.state == "failed":
            self.failed[change.key] = parked.place
        elif parked is not None:
            self.waiting[change.key] = parked.without_value()
            self.changed.put(change.key)


class KeptEvents:
    """The topic of events that are not done, read by each process. Owned by one thread."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self.topic = group_of(name)
        self._kafka = kafka
        kept = Directory("kept", topic=self.topic, decode=Parked.parse, projection=_KeptStates)
        own = kafka.properties()  # a store that is closed ends what is asked through its `Kafka`
        self._store = GlobalStore(own, [kept], missing_topic="wait", start_timeout=30.0)
        self._written: dict[int, Token] = {}

    def start(self) -> None:
        """Create the topic where it is missing, and read it. Raises ConfigError, Unreachable, StartTimeout."""
        config = {"cleanup.policy": "compact", "max.message.bytes": str(LARGEST)}
        if not self._kafka.topics([self.topic]):
            self._kafka.create_topic(self.topic, partitions=1, config=config)
        self._store.start()

    def close(self) -> None:
        """End the store."""
        self._store.close()

    def write(self, producer: Producer, event: str, parked: Parked | None) -> None:
        """Keep an event, or forget it, within the producer's transaction."""
        data = None if parked is None else parked.data()
        producer.produce(self.topic, data, event, on_delivery=self._note)

    def read_to_the_end(self) -> None:
        """Wait for everything that is in the topic. Raises Unreachable where an open transaction holds it back."""
        try:
            self._store.barrier(_SECONDS)
        except WaitTimeout as error:
            raise Unreachable("Kafka", f"topic {self.topic!r} can't be read to its end: {error}") from error

    def current(self) -> bool:
        """Whether all that this process has written is read back."""
        at = self._store.positions()
        return self._store.state is StoreState.READY and all(
            at.get(token.place, 0) > token.offset for token in self._written.values()
        )

    def events(self) -> list[Parked]:
        """Return all that are kept, as far as read."""
        return list(self._store["kept"].values())

    def event(self, waiting: Parked) -> Parked | None:
        """Return a waiting event with its value; None where its last attempt is not read back yet."""
        with suppress(NotReady):
            stored: Parked | None = self._store["kept"].get(waiting.id)
            if stored is not None and stored.attempts == waiting.attempts:
                return stored
        return None

    def waiting(self) -> list[Parked]:
        """Return the events that wait, without their values."""
        return list(self._states.waiting.values())

    def changed(self) -> list[Parked]:
        """Return those of the events that wait, without their values, that changed since the last call."""
        states, changed = self._states, []
        with suppress(Empty):
            while True:
                parked = states.waiting.get(states.changed.get_nowait())
                changed += [parked] if parked is not None else []
        return changed

    def failed(self) -> list[Partition]:
        """Return the partition of each event that was set aside."""
        return list(self._states.failed.values())

    @property
    def _states(self) -> _KeptStates:
        states: _KeptStates = self._store["kept"].projection
        return states

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            token = Token.from_message(message)
            self._written[token.partition] = token


class Members(Group):
    """Membership whose offsets are committed in the transactions of a producer, with the topic's id beside them.

    Owned by one thread.
    """

    def __init__(self, kafka: Kafka, processor: Processor) -> None:
        super().__init__(kafka, [processor.topic], group_of(processor.name), {})
        self._kafka = kafka
        self._processor = processor
        self.topic_id: str | None = None

    def send_offsets(self, producer: Producer, positions: Mapping[Partition, Position]) -> None:
        """Commit the offsets in the producer's transaction. Kafka refuses a member that its group has left behind.

        A thread does it. The client (2.16) ignores the time-out once the coordinator's broker has left the cluster.
        The thread is abandoned then, and the next producer finds the new coordinator. Raises KafkaException.
        """
        offsets = [at_epoch(part, its.read, its.leader_epoch, self.topic_id or "") for part, its in positions.items()]
        metadata, done = self._consumer.consumer_group_metadata(), Future[None]()

        def send() -> None:
            try:
                producer.send_offsets_to_transaction(offsets, metadata, _SENDING)
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 (raised to the caller)
                done.set_exception(error)

        start_thread("process-offsets", send)
        try:
            done.result(_SENDING + 1)
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer of the group's coordinator")) from None  # noqa: SLF001

    def commit(self, partitions: Iterable[Partition] | None = None, *, wait: bool = False) -> None:
        """Do nothing: a transaction has done it."""

    def hold(self, held: bool) -> None:
        """Fetch nothing, or go on, and stay in the group."""
        listed = [TopicPartition(*part) for part, position in self.positions.items() if position is not None]
        try:
            (self._consumer.pause if held else self._consumer.resume)(listed)
        except KafkaException as error:
            log.debug("could not pause or resume yet", error=str(error))

    def check_topic(self) -> None:
        """See that the topic is still the same, and that Kafka answers: a client without records tells of no outage.

        Raises Unreachable.
        """
        found = self._kafka.topics([self._processor.topic]).get(self._processor.topic)
        if found is not None and self.topic_id not in (None, found.topic_id):
            self.forget_positions(self.positions)  # the next poll says what is wrong

    def locate(self, kept: KeptEvents, partitions: Sequence[Partition]) -> dict[Partition, Located]:
        """Return where partitions go on, once no transaction is open that might move that or add to ``kept``.

        Raises Unreachable, ConfigError, CompactoryError where the log does not have what comes next.
        """
        topic = self._processor.topic
        found = self._kafka.topics([topic]).get(topic)
        if found is None:
            raise ConfigError(f"topic {topic!r} does not exist; create it")
        if self.topic_id not in (None, found.topic_id):
            raise CompactoryError(f"topic {topic!r} was deleted and created again; start the processor anew")
        self.topic_id = found.topic_id
        starts, ends = self._kafka.log_starts(partitions), self._kafka.high_watermarks(partitions)
        first = starts if self._processor.start == "earliest" else ends
        stored = self.stored(partitions)  # some of it perhaps for a topic of that name that was deleted
        located = {part: Located(first[part], first[part]) for part in partitions}
        for part, item in stored.items():
            if item.metadata not in (None, "", found.topic_id):
                continue
            if item.offset > ends[part]:
                place = f"partition {part.partition} of {topic!r}"
                raise CompactoryError(f"{place} ends at {ends[part]}, before offset {item.offset}: it was cut off")
            offset = max(item.offset, starts[part])
            located[part] = Located(offset, offset, item.leader_epoch if offset == item.offset else None)
        kept.read_to_the_end()  # after the offsets, whose answer waited for open transactions
        return located
