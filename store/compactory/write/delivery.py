"""A producer, the thread that receives its delivery reports, and the calls that wait for these."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from threading import Event
from typing import Any

from compactory.kafka.client import Kafka, KafkaError, KafkaException, Message, Producer, enqueue
from compactory.threads import StoppableThread, in_forked_children, keep_forever

__all__ = ["Delivery", "Record", "Shipment"]

Record = tuple[bytes, bytes | None]  # key and value; no value: a tombstone

_POLL_INTERVAL = 0.1  # seconds
_REPORT_GRACE = 5.0  # seconds that a report may be late; the client itself gives records up before
# Errors of records that never left, or that the broker refused: these are certainly not in the topic.
_UNSENT = frozenset({
    KafkaError._QUEUE_FULL, KafkaError._PURGE_QUEUE, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._FATAL, KafkaError._STATE,  # noqa: SLF001 (the client's own names)
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD,
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.POLICY_VIOLATION,
})  # fmt: skip


class Shipment:
    """The records of one call and the outcome of each.

    Filled by the delivery's thread, read once ``finished`` is set.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.places: list[tuple[int, int] | None] = [None] * len(records)  # partition and offset, once acknowledged
        self.errors: dict[int, KafkaError] = {}  # number of the record → why it is not acknowledged
        self.has_reports = False
        self.finished = Event()
        self._reports = count(1)  # atomic: while the queue is full, the sender's thread receives reports too
        if not records:
            self.finished.set()

    def settle(self, number: int, error: KafkaError | None, message: Message | None = None) -> None:
        """Store the outcome of a record."""
        self.has_reports = True
        if error is not None:
            self.errors[number] = error
        elif message is not None:
            partition, offset = message.partition(), message.offset()
            # A record that is acknowledged as a repetition has a negative offset.
            if partition is not None and offset is not None and offset >= 0:
                self.places[number] = (partition, offset)
        if next(self._reports) == len(self.records):
            self.finished.set()

    @property
    def complete(self) -> bool:
        """True if every record is acknowledged with its partition and offset."""
        return self.finished.is_set() and None not in self.places

    def is_unsent(self, number: int) -> bool:
        """Return True if a record that failed is certainly not in the topic."""
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
        self._client_errors: list[KafkaError] = []  # the last error of the client as a whole, or none
        self._producer: Producer | None = kafka.producer(settings, own, partial(_remember, self._client_errors))
        self._unfinished: set[Shipment] = set()
        self._is_closing = False
        self._thread = StoppableThread("writer")
        self._thread.start(partial(_serve, self._producer, self._thread.stopping))
        in_forked_children(self._leave_to_parent)

    @property
    def client_error(self) -> KafkaError | None:
        """The last error of the client as a whole: why nothing is acknowledged."""
        return self._client_errors[-1] if self._client_errors else None

    @property
    def is_broken(self) -> bool:
        """True if the producer can't be used any more."""
        error = self.client_error
        return error is not None and error.fatal()

    def send(self, records: Sequence[Record]) -> Shipment:
        """Send records and wait until each is acknowledged or given up."""
        shipment = Shipment(records)
        self._unfinished.add(shipment)  # before _is_closing is read: either close() sees it, or it sees close()
        try:
            self._enqueue(shipment)
            shipment.finished.wait(self._timeout + _REPORT_GRACE)
        finally:
            if shipment.finished.is_set():  # it is not after a KeyboardInterrupt
                self._unfinished.discard(shipment)
        return shipment

    def close(self, timeout: float) -> list[Shipment]:
        """Wait ``timeout`` seconds for unfinished calls, give up the others and end the thread; return those given up.

        Safe to call twice; nothing in a forked child, where there is no thread to end.
        """
        if os.getpid() != self._pid or self._is_closing:
            return []
        self._is_closing = True
        deadline = time.monotonic() + timeout
        unfinished = list(self._unfinished)
        for shipment in unfinished:
            shipment.finished.wait(max(0.0, deadline - time.monotonic()))
        producer = self._producer
        assert producer is not None
        producer.purge()
        for shipment in unfinished:
            shipment.finished.wait(1.0)
        self._thread.stop()
        self._producer = None  # with it the client's own threads end
        for shipment in list(self._unfinished):  # enqueued meanwhile: they get no reports any more
            shipment.finished.set()
        return [shipment for shipment in unfinished if not shipment.complete]

    def _leave_to_parent(self) -> None:
        keep_forever(self._producer)

    def _enqueue(self, shipment: Shipment) -> None:
        topic, settle, producer = self._topic, shipment.settle, self._producer
        for number, (key, value) in enumerate(shipment.records):
            if self._is_closing or producer is None:
                settle(number, KafkaError(KafkaError._PURGE_QUEUE, "the writer is closed"))  # noqa: SLF001
                continue
            deadline = time.monotonic() + self._timeout
            try:
                enqueue(producer, deadline, topic, value, key, on_delivery=partial(settle, number))
            except KafkaException as error:
                settle(number, error.args[0])


def _serve(producer: Any, stopping: Event) -> None:
    while not stopping.is_set():
        producer.poll(_POLL_INTERVAL)


def _remember(client_errors: list[KafkaError], error: KafkaError) -> None:
    if not any(earlier.fatal() for earlier in client_errors):
        client_errors[:] = [error]
