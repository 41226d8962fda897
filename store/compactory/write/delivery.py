"""Records on their way to Kafka: a producer, the thread for its delivery reports, and the calls that wait for them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from threading import Event
from typing import Any

from compactory.cleanup import in_forked_children, keep_forever
from compactory.kafka.client import Kafka, KafkaError, KafkaException, Message, Producer, enqueue
from compactory.stoppable_thread import StoppableThread

__all__ = ["Delivery", "Record", "Shipment"]

Record = tuple[bytes, bytes | None]  # key and value; no value: a tombstone

_POLL = 0.1  # seconds between two looks at whether to stop
_GRACE = 5.0  # seconds that a report may be late; the client gives records up by itself before
# Errors of records that never left, or that the broker refused: these are certainly not in the topic.
_UNSENT = frozenset({
    KafkaError._QUEUE_FULL, KafkaError._PURGE_QUEUE, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._FATAL, KafkaError._STATE,  # noqa: SLF001 (the client's own names)
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD,
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.POLICY_VIOLATION,
})  # fmt: skip


class Shipment:
    """The records of one call, and what became of each. Filled by the delivery's thread, read once ``done`` is set."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.places: list[tuple[int, int] | None] = [None] * len(records)  # partition and offset, once acknowledged
        self.errors: dict[int, KafkaError] = {}  # number of the record → why it is not
        self.heard = False  # whether there was any report
        self.done = Event()
        self._reports = count(1)  # atomic: a full queue lets the sender hear reports too
        if not records:
            self.done.set()

    def settle(self, number: int, error: KafkaError | None, message: Message | None = None) -> None:
        """Take down what became of a record."""
        self.heard = True
        if error is not None:
            self.errors[number] = error
        elif message is not None:
            partition, offset = message.partition(), message.offset()
            # a negative offset: acknowledged as a repetition, its place is not known
            if partition is not None and offset is not None and offset >= 0:
                self.places[number] = (partition, offset)
        if next(self._reports) == len(self.records):
            self.done.set()

    @property
    def complete(self) -> bool:
        """Whether every record is acknowledged and its place known."""
        return self.done.is_set() and None not in self.places

    def is_unsent(self, number: int) -> bool:
        """Say whether a record that failed is certainly not in the topic."""
        error = self.errors.get(number)
        return error is not None and error.code() in _UNSENT


class Delivery:
    """Sends records to one topic; any thread may call it. Belongs to the process that made it.

    Records with one key keep the order in which they were handed over. A record that is not acknowledged within
    ``timeout`` seconds is given up.
    """

    def __init__(self, kafka: Kafka, topic: str, settings: Mapping[str, Any], own: Mapping[str, Any], timeout: float):
        self._topic = topic
        self._timeout = timeout
        self._pid = os.getpid()
        self._trouble: list[KafkaError] = []  # the last client-wide error, if there was one
        self._producer: Producer | None = kafka.producer(settings, own, partial(_remember, self._trouble))
        self._under_way: set[Shipment] = set()
        self._closing = False  # nothing new is taken
        self._thread = StoppableThread("writer")
        self._thread.start(partial(_serve, self._producer, self._thread.stopping))
        in_forked_children(self._leave_to_parent)

    @property
    def trouble(self) -> KafkaError | None:
        """The last error of the client as a whole: why nothing is acknowledged."""
        return self._trouble[-1] if self._trouble else None

    @property
    def is_broken(self) -> bool:
        """Whether the producer can't be used any more."""
        trouble = self.trouble
        return trouble is not None and trouble.fatal()

    def send(self, records: Sequence[Record]) -> Shipment:
        """Send records and wait until each is acknowledged or given up."""
        shipment = Shipment(records)
        self._under_way.add(shipment)  # before the look at _closing, so that close() sees it or it sees close()
        try:
            self._enqueue(shipment)
            shipment.done.wait(self._timeout + _GRACE)
        finally:
            if shipment.done.is_set():  # an interrupted one is still under way
                self._under_way.discard(shipment)
        return shipment

    def close(self, timeout: float) -> list[Shipment]:
        """Let what is under way end within ``timeout`` seconds, give up the rest, end the thread; return the rest.

        Safe to call twice; nothing in a forked child, where there is no thread to end.
        """
        if os.getpid() != self._pid or self._closing:
            return []
        self._closing = True
        deadline = time.monotonic() + timeout
        waiting = list(self._under_way)
        for shipment in waiting:
            shipment.done.wait(max(0.0, deadline - time.monotonic()))
        producer = self._producer
        assert producer is not None
        producer.purge()
        for shipment in waiting:
            shipment.done.wait(1.0)
        self._thread.stop()
        self._producer = None  # with it the client's own threads end
        for shipment in list(self._under_way):  # handed over meanwhile: they get no more reports
            shipment.done.set()
        return [shipment for shipment in waiting if not shipment.complete]

    def _leave_to_parent(self) -> None:
        keep_forever(self._producer)

    def _enqueue(self, shipment: Shipment) -> None:
        topic, settle, producer = self._topic, shipment.settle, self._producer
        for number, (key, value) in enumerate(shipment.records):
            if self._closing or producer is None:
                settle(number, KafkaError(KafkaError._PURGE_QUEUE, "the writer is closed"))  # noqa: SLF001
                continue
            deadline = time.monotonic() + self._timeout
            try:
                enqueue(producer, deadline, topic, value, key, on_delivery=partial(settle, number))
            except KafkaException as error:
                settle(number, error.args[0])


def _serve(producer: Any, stopping: Event) -> None:
    while not stopping.is_set():
        producer.poll(_POLL)


def _remember(trouble: list[KafkaError], error: KafkaError) -> None:
    if not any(known.fatal() for known in trouble):
        trouble[:] = [error]
