"""Publishes records together with the offset that covers them.

With transactions (the default) one Kafka transaction carries records and offset (KIP-98), and the transactional id
fences every earlier publisher. Without transactions the offset is sent after the records: each record is sent at least
once, and a process that was frozen can still send an old value when it continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Never, Protocol

from confluent_kafka import KafkaError, KafkaException, Message

from compactory.errors import CompactoryError, LeaseLost, Unreachable
from compactory.kafka.client import Kafka, enqueue
from compactory.kafka.errors import code_of
from compactory.kafka.transactional_producer import TransactionalProducer, was_ended_outside
from compactory_connectors.kafka.producer_record import Copy, Headers, ProducerRecord

from .partitioner import hash_name

if TYPE_CHECKING:
    from confluent_kafka import Producer

__all__ = ["EndInDoubt", "PublishLease", "Publisher", "TopicRefused", "TransactionTimedOut"]

_TRANSACTION_TIMEOUT = 10.0
"""Seconds after which Kafka aborts a transaction. An abandoned transaction blocks read_committed readers until then."""

_ABORT_TIMEOUT = 3.0  # seconds

_SLOW = {KafkaError._TIMED_OUT, KafkaError._QUEUE_FULL}  # noqa: SLF001 - the client's own names

_REFUSALS = {
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic, and max.request.size where a connector sets"
    " it, or make the row or message smaller",
    KafkaError.RECORD_LIST_TOO_LARGE: "raise max.message.bytes and segment.bytes of the topic",
    KafkaError.POLICY_VIOLATION: "a policy of the broker's refuses it",
    KafkaError.INVALID_RECORD: "the broker refuses it; a compacted topic takes no record without a key",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the ACL operation Write on the topic is needed",
    KafkaError.NOT_ENOUGH_REPLICAS: "see min.insync.replicas of the topic and which brokers are away",
    KafkaError._MSG_TIMED_OUT: "Kafka answers otherwise: see which of the topic's replicas are away or have"  # noqa: SLF001
    " no room, and its min.insync.replicas; where it is only slow, the next pages are smaller",
}
"""Faults of one topic, or records of it, while others are written, each with its remedy."""

_DEFAULTS: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",  # as Java clients do; null keys are spread
    "compression.type": "lz4",
    "linger.ms": 0,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 1_000_000,
    "message.max.bytes": 100_000_000,  # the topic has a limit of its own
    "message.timeout.ms": 8_000,  # less than a commit may take: else nobody would know which topic it was
}


class PublishLease(Protocol):
    """The right to publish. Both methods raise LeaseLost once the right is lost, or another CompactoryError."""

    def confirm(self) -> None:
        """Check the right with its keeper: after earlier publishers are fenced, before offsets are read."""
        ...

    def check(self) -> None:
        """Check the right by what this process knows, before each transaction."""
        ...


class TransactionTimedOut(CompactoryError):
    """Kafka aborted a transaction that was open for too long. No other process need have taken over."""

    retryable = True


class EndInDoubt(CompactoryError):
    """A late copy of the last commit or abort may still reach Kafka. Nothing was sent. Open another publisher."""

    retryable = True


class TopicRefused(CompactoryError):
    """Kafka refuses these records and accepts others. They were not sent; the publisher can go on with others.

    ``code`` is the client's error code.
    """

    retryable = True

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Publisher(TransactionalProducer):
    """Publishes under one transactional id. Owned by one thread.

    After every error but TopicRefused the publisher is unusable: close it, open another one, read the offsets again.
    After TopicRefused, and where the end of a transaction is in doubt (see `transactional_producer`), it replaces its
    producer at once if ``may_reopen``; later the replacement could fence a process that has taken over meanwhile. If
    not ``may_reopen``, the publisher is not ``usable`` any more: for an id that another process can take over without a
    lease. ``transaction_timeout`` is in seconds. Raises what ``lease`` raises, and:

    - TopicRefused: the records or their topic are at fault.
    - LeaseLost: another holder of the transactional id has taken over.
    - TransactionTimedOut: Kafka has ended the transaction, as this process stood still for too long.
    - Unreachable: Kafka does not answer within ``timeout`` seconds.
    """

    def __init__(
        self,
        kafka: Kafka,
        name: str,
        offsets_topic: str,
        *,
        transactions: bool = True,
        overrides: Mapping[str, Any] | None = None,
        timeout: float = 9.0,
        transaction_timeout: float = _TRANSACTION_TIMEOUT,
        lease: PublishLease | None = None,
        may_reopen: bool = True,
    ) -> None:
        self._offsets_topic = offsets_topic
        self._transactions = transactions
        self._timeout = timeout
        self._transaction_timeout = transaction_timeout
        self._lease = lease
        self._may_reopen = may_reopen
        self._must_reopen = False
        self._lost: CompactoryError | None = None  # why the producer could not be replaced
        self._begun_at: float | None = None  # by the monotonic clock
        self._failure: KafkaError | None = None
        self.usable = True
        """True while the publisher may go on: no failure was about more than some records."""
        self.was_ended_outside = False
        """True if Kafka ended the last transaction early: which part of it is committed is unknown."""
        own: dict[str, Any] = dict(overrides or {})
        if transactions:
            own |= {"transactional.id": f"compactory-{name}", "transaction.timeout.ms": int(transaction_timeout * 1000)}
        super().__init__(kafka, f"compactory-{name}", _DEFAULTS, own)
        self.partitioner = hash_name({**_DEFAULTS, **kafka.properties(), **own}["partitioner"])
        """The hash function that chooses partitions; see `partitioner.partition_by`."""

    def open(self, timeout: float = 30.0) -> None:
        """Fence earlier publishers of the transactional id. Their open transaction is aborted on return."""
        if self._transactions:
            self.usable = False
            self._take_over(self._offsets_topic, timeout)
            self.usable = True
        if self._lease is not None:
            self._lease.confirm()

    def publish(
        self,
        topic: str,
        records: Iterable[ProducerRecord],
        offset: ProducerRecord | None,
        deleted_copies: Iterable[Copy] = (),
    ) -> None:
        """Publish records, a tombstone for each copy, and the offset. On return Kafka has acknowledged every record."""
        with self._transaction("publish in a transaction" if self._transactions else "publish"):
            produce = self._producer.produce
            # a commit fails by itself when a record was not delivered; a call for each costs more than to produce it
            report = None if self._transactions else self._delivered
            for record in records:
                if len(record) != 2:
                    key, value, routed, headers = record
                    self._produce(routed, value, key, headers)
                    continue
                key, value = record
                try:
                    produce(topic, value, key, on_delivery=report)
                except BufferError:  # the queue is full: Kafka is slow, or the user made the queue small
                    self._produce(topic, value, key)
            for copy in deleted_copies:
                self._produce(topic, None, copy.key, partition=copy.partition, timestamp=copy.timestamp_ms)
            if offset is not None:
                if not self._transactions:
                    self.flush()
                self._produce(self._offsets_topic, offset[1], offset[0])

    def flush(self) -> None:
        """Wait until Kafka has acknowledged every record that was sent so far. `publish`'s iterable may call it."""
        unacknowledged = self._producer.flush(self._timeout)
        if self._failure is not None:
            raise KafkaException(self._failure)
        if unacknowledged:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{unacknowledged} records not acknowledged"))  # noqa: SLF001

    def amend(self, offsets: Sequence[tuple[bytes, bytes | None, Headers]]) -> None:
        """Write offsets without records, in one transaction if transactions are on. Wait until Kafka has them."""
        with self._transaction("write offsets"):
            for key, value, headers in offsets:
                self._producer.produce(self._offsets_topic, value, key, headers=headers, on_delivery=self._delivered)

    def transact(self, send: Callable[[Producer], object]) -> None:
        """Call ``send`` with the producer, within one transaction. On return Kafka has acknowledged every record."""
        with self._transaction("publish in a transaction"):
            send(self._producer)

    def abort(self) -> None:
        """Abort the open transaction, if any, so that readers do not wait for its time-out. Raises nothing.

        The only method that may be called after an error.
        """
        if self._transactions and self._begun_at is not None:
            self._abort(_ABORT_TIMEOUT)

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None = None,
        *,
        partition: int = -1,
        timestamp: int = 0,
    ) -> None:
        options: dict[str, Any] = {"headers": headers, "partition": partition, "timestamp": timestamp}
        deadline = time.monotonic() + self._timeout
        enqueue(self._producer, deadline, topic, value, key, on_delivery=self._delivered, **options)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None and self._failure is None:
            self._failure = error

    @contextmanager
    def _transaction(self, action: str) -> Iterator[None]:
        """Run the body as one transaction, if transactions are on, and wait until Kafka has acknowledged every record.

        Raises our errors in place of the client's. The publisher stays usable if only records were refused.
        """
        if self._lease is not None:
            self._lease.check()
        is_doubtful = self._transactions and not self._may_reopen and (self._must_reopen or self.is_end_in_doubt)
        if self._lost is not None or is_doubtful:
            self._raise_why_unusable()
        self.usable, self._failure = False, None
        try:
            with self._mapped(action):
                if self._transactions:
                    self._producer.begin_transaction()  # where it fails, `_begun_at` is of one that could not be ended
                    self._begun_at = time.monotonic()
                try:
                    yield
                except KafkaException as error:
                    self._raise_reason(error)
                    raise
                if self._transactions:
                    self._producer.commit_transaction(self._timeout)
                    self._begun_at = None
                    self._replace_producer(self.is_end_in_doubt)
                else:
                    self.flush()
        except LeaseLost as error:
            if self._begun_at is None or time.monotonic() - self._begun_at < self._transaction_timeout:
                raise
            raise TransactionTimedOut(
                f"a transaction was open for more than {self._transaction_timeout:g} s, because this process was frozen"
                " or Kafka was away, and Kafka has aborted it; its records are sent again"
            ) from error
        except Exception as error:
            self.was_ended_outside = was_ended_outside(error)
            self._raise_topic_refused(error)
            cause = error.__cause__
            if isinstance(cause, KafkaException) and code_of(cause) in _SLOW and self._trouble is None:
                place = f"Kafka at {self._kafka.bootstrap} was not reached to {action} within {self._timeout:g} s"
                why = "it is away, or takes records too slowly; the next pages are smaller"
                raise Unreachable("Kafka", f"{place}: {why}") from error
            raise
        self.usable = self._can_go_on

    @property
    def _can_go_on(self) -> bool:
        return self._lost is None and not self._must_reopen

    def _raise_why_unusable(self) -> Never:
        """Raise the error that ended this publisher, or EndInDoubt."""
        if self._lost is not None:
            raise self._lost
        self.usable = False
        raise EndInDoubt(
            f"the end of the last transaction of {self._id!r} was repeated, because a connection to Kafka broke: a"
            " new producer is opened, so that a late request ends nothing"
        )

    def _replace_producer(self, is_needed: bool) -> None:
        """Replace the producer if that ``is_needed``, or remember that it must not go on. Raises nothing.

        No other process has taken over yet: the transaction that just ended was not fenced.
        """
        self._must_reopen = is_needed
        if is_needed and self._may_reopen:
            self.close()
            self._open_producer()
            try:
                self.open(self._timeout)
                self._must_reopen = False
            except CompactoryError as error:  # what was committed is committed: the next transaction fails
                self._lost = error

    def _raise_reason(self, error: KafkaException) -> None:
        """Raise the reason of a failed transaction. The client first reports only that the transaction has failed."""
        if error.args[0].code() == KafkaError._STATE:  # noqa: SLF001 - the client's own name
            self._producer.begin_transaction()  # is refused, and the refusal of a failed transaction has its reason

    def _raise_topic_refused(self, error: Exception) -> None:
        """Raise TopicRefused if the fault is of records or their topic. The publisher is usable if the abort worked."""
        cause = error.__cause__
        refused = self._failure or (cause.args[0] if isinstance(cause, KafkaException) and cause.args else None)
        if refused is None or refused.code() not in _REFUSALS:
            return
        with suppress(KafkaException):  # the client (2.16) ends for good if Kafka has taken no partition yet
            self._producer.purge()
            self._producer.flush(_ABORT_TIMEOUT)
            if self._transactions:
                self._producer.abort_transaction(_ABORT_TIMEOUT)
            self._begun_at = None
            self._replace_producer(self._transactions)  # an abort that is repeated may end the next transaction too
            self.usable = self._can_go_on
        reason = f"{refused.str()}; {_REFUSALS[refused.code()]}"
        raise TopicRefused(f"Kafka at {self._kafka.bootstrap} refuses records: {reason}", refused.code()) from error
