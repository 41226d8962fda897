"""DirectoryWriter: entries into a directory's topic, each acknowledged and with a token to wait for."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Generic, Self, TypeVar

from compactory.codec.encoding import RecordEncoder
from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError, Unreachable, WriteFailed, WriteRefused
from compactory.kafka.client import Kafka, KafkaError, KafkaException, kafka_errors
from compactory.threads import start_thread
from compactory.token import Token
from compactory.write.delivery import Delivery, Record, Shipment
from compactory.write.destination import Destination

__all__ = ["DirectoryWriter"]

log = logging.getLogger("compactory.writer")

T = TypeVar("T")

_DEFAULTS: dict[str, Any] = {
    "partitioner": "murmur2_random",  # what Java clients and the source do: a key stays in its partition
    "compression.type": "lz4",
    "linger.ms": 0,  # a call waits for its acknowledgements, so what it sends is batched while the first ones are out
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 1_000_000,
}
_REQUIRED = {  # property → values with the meaning that a writer needs
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "enable.idempotence": ("true",),
    "delivery.report.only.error": ("false",),
}
_MOST_LISTED = 20  # problems that a refused put_many lists; the others are counted
_LONGEST_TIMEOUT = 86_400  # seconds


class DirectoryWriter(Generic[T]):
    """Writes entries of one directory into its topic. Stores change only when they read the records from Kafka.

    ``kafka``      bootstrap servers, or librdkafka properties, as for `GlobalStore`
    ``directory``  a `Directory` with ``writable=True`` and without an envelope
    ``encode``     turns a value into bytes; default: the inverse of the directory's ``decode``
    ``timeout``    seconds after which a record that is not acknowledged is given up
    ``create``     create the topic, compacted, if it does not exist; default: refuse

    A call returns when every in-sync replica has its records (acks=all, idempotent: none is written twice by a retry),
    with tokens for `GlobalStore.wait_for`. Calls with one key take effect in the order of the calls. Records that
    readers could not use are refused before anything is sent: keys that are not text, values that the directory's
    ``decode`` refuses or that would read back as something else, fields that can't be indexed, records larger than the
    topic takes.

    The *record's* key is the given key. With ``key=`` the value's field must hold the same, and `delete` removes only
    the record with that record key. A row that a source publishes under its id is another owner of the entry and
    appears again. A value whose ``active`` field is JSON false is written, and readers take it for deleted.

    ``start`` checks the topic (``with`` and the first write call it). The first write takes half a second longer
    than others: the client library (librdkafka 2.16) asks for its producer id only then. So keep a writer instead of
    making one for each write. All methods may be called by any thread, in the process that made the writer.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, Any],
        directory: Directory[T],
        *,
        encode: Callable[[Any], bytes] | None = None,
        timeout: float = 10.0,
        create: bool = False,
    ) -> None:
        problems = [*_directory_problems(directory), *_timeout_problems(timeout)]
        try:
            self._kafka = Kafka(kafka)
            problems.extend(_property_problems(self._kafka.properties()))
        except ConfigError as error:
            problems.extend(error.problems)
        if problems:
            raise ConfigError(problems)
        self.directory = directory
        self._encoding = RecordEncoder(directory, encode)
        self._timeout = timeout
        self._create = create
        self._pid = os.getpid()
        self._destination = Destination(self._kafka, directory.topic)
        self._opening = Lock()  # guards _delivery and _closed
        self._delivery: Delivery | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<DirectoryWriter {self.directory.name!r} to topic {self.directory.topic!r}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except WriteFailed as failure:
            if error is None:
                raise
            log.error("%s", failure)  # the error of the block is raised

    def start(self) -> None:
        """Check the topic and make the producer, once. The first write calls it as well.

        Raises ConfigError (the topic does not exist, no right to write it), Unreachable, CompactoryError after a fork
        or `close`.
        """
        self._start_once()

    def put(self, key: str, value: T) -> Token:
        """Write an entry, new or not; return its token once it is acknowledged.

        Raises WriteRefused (nothing was sent), WriteFailed (it was sent), and the errors of `start`.
        """
        return self._send([self._encoding.record(key, value)])[0]

    def delete(self, key: str) -> Token:
        """Write a tombstone, even if no entry exists; return its token once it is acknowledged.

        Raises WriteRefused (nothing was sent), WriteFailed (it was sent), and the errors of `start`.
        """
        return self._send([(self._encoding.key(key), None)])[0]

    def put_many(self, entries: Mapping[str, T] | Iterable[tuple[str, T]]) -> list[Token]:
        """Write entries; return their tokens in the given order, once all of them are acknowledged.

        This process sends all entries or none: one bad entry refuses the whole call (WriteRefused). Kafka may still
        accept only some of them: WriteFailed says which keys were written and which not.
        """
        records: list[Record] = []
        problems: list[str] = []
        cause: Exception | None = None
        for key, value in _pairs(entries):
            try:
                records.append(self._encoding.record(key, value))
            except WriteRefused as error:
                problems.extend(error.problems)
                cause = cause or error
        if problems:
            raise WriteRefused(_shortened(problems)) from cause
        return self._send(records)

    def close(self, timeout: float | None = None) -> None:
        """Refuse new writes, wait for acknowledgements, and give up the rest after ``timeout`` seconds.

        The default is the writer's own ``timeout``. Idempotent; complete on return. Raises WriteFailed for records
        that were given up (calls of other threads that wait for them raise it too).
        """
        if os.getpid() != self._pid:
            return
        with self._opening:
            self._closed = True
            delivery = self._delivery
            self._forget()
        if delivery is None:
            return
        unfinished = delivery.close(self._timeout if timeout is None else timeout)
        self._kafka.close()
        if unfinished:
            raise self._failure(unfinished, delivery)

    def _send(self, records: Sequence[Record]) -> list[Token]:
        delivery = self._start_once()
        problems = self._destination.too_large(records)
        if problems:
            raise WriteRefused(_shortened(problems))
        last_offsets = self._destination.last_offsets()
        shipment = delivery.send(records)
        if not shipment.complete:
            raise self._failure([shipment], delivery)
        try:
            return self._destination.tokens([place for place in shipment.places if place is not None], last_offsets)
        except CompactoryError as error:
            self._discard(delivery)
            unknown = dict.fromkeys(key.decode() for key, _ in records)
            raise WriteFailed(
                f"{error}; write again", topic=self.directory.topic, unknown=unknown, cause=error
            ) from error

    def _start_once(self) -> Delivery:
        if os.getpid() != self._pid:
            raise CompactoryError(
                f"the writer was made in process {self._pid} and this is process {os.getpid()}: threads and connections"
                " do not survive a fork. Make it in each worker (gunicorn: post_fork; uvicorn: lifespan)"
            )
        delivery = self._delivery
        if delivery is not None:
            return delivery
        with self._opening:
            if self._closed:
                raise CompactoryError("the writer is closed; make a new one")
            if self._delivery is None:
                self._delivery = self._open()
            return self._delivery

    def _open(self) -> Delivery:
        own = self._destination.prepare(self._timeout, create=self._create)
        own |= {"acks": "all", "enable.idempotence": True, "message.timeout.ms": max(1, int(self._timeout * 1000))}
        delivery = Delivery(self._kafka, self.directory.topic, _DEFAULTS, own, self._timeout)
        # A writer that is dropped without close() must not leave its thread behind; nothing here refers to the writer.
        self._finalizer = weakref.finalize(self, start_thread, "writer-close", delivery.close, 0.0)
        return delivery

    def _discard(self, delivery: Delivery) -> None:
        """Close the delivery, so that the next write checks the topic again and makes a new producer."""
        with self._opening:
            if self._delivery is delivery:
                self._forget()
        delivery.close(0.0)

    def _forget(self) -> None:
        self._delivery = None
        if self._finalizer is not None:
            self._finalizer.detach()

    def _failure(self, shipments: Sequence[Shipment], delivery: Delivery) -> WriteFailed:
        """Return the error with the outcome of each key."""
        topic, written = self.directory.topic, dict[str, Token]()
        not_written, unknown = dict[str, None](), dict[str, None]()
        places = [place for shipment in shipments for place in shipment.places]
        for shipment in shipments:
            for number, ((key, _), place) in enumerate(zip(shipment.records, shipment.places, strict=True)):
                if place is not None:
                    written[key.decode()] = Token(topic, *place, self._destination.topic_id)
                else:
                    (not_written if shipment.is_unsent(number) else unknown)[key.decode()] = None
        errors = [error for shipment in shipments for error in shipment.errors.values()]
        cause = self._cause(errors[0] if errors else None, delivery)
        if delivery.is_broken or isinstance(cause, ConfigError):  # the next write begins anew
            self._discard(delivery)
        parts = [f"{places.count(None)} of {len(places)} records for topic {topic!r} were not acknowledged: {cause}"]
        if unknown:
            parts.append(f"{len(unknown)} keys may be written all the same; writing again is safe")
        error = WriteFailed(
            "; ".join(parts), topic=topic, written=written, not_written=not_written, unknown=unknown, cause=cause
        )
        error.__cause__ = cause
        return error

    def _cause(self, error: KafkaError | None, delivery: Delivery) -> CompactoryError:
        """Return why the first record failed. A time-out alone says nothing, so look for its reason."""
        action = f"write to topic {self.directory.topic!r}"
        if error is not None and not _is_timeout(error):
            try:
                with kafka_errors(action, self._kafka.bootstrap):
                    raise KafkaException(error)
            except CompactoryError as mapped:
                return mapped
        client_error = delivery.client_error
        detail = f"no acknowledgement in {self._timeout:g} s"
        detail += f" ({client_error.str()})" if client_error is not None else ""
        try:
            if not self._destination.exists():
                return ConfigError(f"topic {self.directory.topic!r} does not exist any more: it was deleted")
        except CompactoryError as unreachable:
            return unreachable
        return Unreachable("Kafka", f"Kafka at {self._kafka.bootstrap} did not {action}: {detail}")


def _is_timeout(error: KafkaError) -> bool:
    return error.code() in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT)  # noqa: SLF001 (the client's own names)


def _pairs(entries: Any) -> Iterator[tuple[Any, Any]]:
    for item in entries.items() if isinstance(entries, Mapping) else entries:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise WriteRefused(f"put_many takes a mapping or pairs of key and value, not {type(item).__name__}")
        yield item[0], item[1]


def _shortened(problems: list[str]) -> list[str]:
    unlisted = len(problems) - _MOST_LISTED
    return problems if unlisted <= 0 else [*problems[:_MOST_LISTED], f"and {unlisted} more"]


def _directory_problems(directory: Any) -> Iterator[str]:
    if not isinstance(directory, Directory):
        yield f"directory must be a Directory(…, writable=True), not {directory!r}"
        return
    if not directory.writable:
        yield f"directory {directory.name!r} is not writable: give it writable=True"
    if directory.rules is not None:
        yield f"directory {directory.name!r} has rules: MasteredWriter obeys them"
    if directory.envelope != "none":
        yield f"directory {directory.name!r} has envelope={directory.envelope!r}: only their producer writes it"


def _timeout_problems(timeout: Any) -> Iterator[str]:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= _LONGEST_TIMEOUT:
        yield f"timeout must be a number of seconds above 0 and at most {_LONGEST_TIMEOUT}, not {timeout!r}"


def _property_problems(properties: Mapping[str, Any]) -> Iterator[str]:
    for name, allowed in _REQUIRED.items():
        value = str(properties.get(name, allowed[0])).lower()
        if value not in allowed:
            yield f"{name}={value} is not for you to set: a writer needs {allowed[0]}; remove the property"
    if "transactional.id" in properties:
        yield "transactional.id is set: a writer does not write in transactions; remove the property"
