"""A producer under a transactional id, of which only the one that was opened last works (KIP-98).

librdkafka repeats the request that ends a transaction (EndTxn) when a connection breaks or stays silent, and then
reports success. If the network delivers the first request later, the broker takes it for the end of the *next*
transaction of this producer: it commits a part of it or discards a part (KIP-890). Only a log line of the client shows
that this may happen. Such a producer has to be replaced before its next transaction: the new one has a higher epoch, so
the broker refuses the late request. Checked on librdkafka 2.16 against Apache Kafka 4.1 to 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from compactory.errors import CompactoryError, LeaseLost
from compactory.kafka.client import Kafka, KafkaError, KafkaException

__all__ = ["TransactionalProducer", "was_ended_outside"]

_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)  # noqa: SLF001
_LOST_REQUESTS = ("FAIL", "REQTMOUT")  # facilities of log lines about broken connections and requests without an answer
_LOG_LEVEL = 6  # the lowest level at which the client logs them


def was_ended_outside(error: BaseException) -> bool:
    """Return True if the broker says that the transaction had ended already: nobody knows which part is committed."""
    causes = (*getattr(error, "args", ()), *getattr(error.__cause__, "args", ()))
    return any(isinstance(cause, KafkaError) and cause.code() == KafkaError.INVALID_TXN_STATE for cause in causes)


class TransactionalProducer:
    """A producer with a transactional id; a subclass sends records. Owned by one thread."""

    def __init__(
        self, kafka: Kafka, transactional_id: str, settings: Mapping[str, Any], own: Mapping[str, Any]
    ) -> None:
        self._kafka = kafka
        self._id = transactional_id
        self._settings = settings
        level = int(kafka.properties().get("log_level", _LOG_LEVEL))
        self._own = {**own, "log.connection.close": True, "log_level": max(level, _LOG_LEVEL)}
        self._open_producer()

    @property
    def is_end_in_doubt(self) -> bool:
        """True if the end of a transaction may still be on its way: no transaction may begin with this producer."""
        self._producer.poll(0)  # the client hands over its log lines while it is polled
        return self._has_lost_requests

    def close(self) -> None:
        """Discard unsent records without waiting. An open transaction ends by its time-out or by the next producer.

        To be called once. The client ends its threads here: its callbacks refer back to this object, so that otherwise
        they would live until the cyclic garbage collector comes by.
        """
        self._producer.purge()
        with suppress(KafkaException):  # a producer that failed for good says so again, and would hide the first time
            self._producer.flush(0)
        del self._producer

    def _open_producer(self) -> None:
        self._trouble: KafkaError | None = None  # the last error of the client as a whole
        self._has_lost_requests = False
        self._producer = self._kafka.producer(self._settings, self._own, self._remember, self._read_log)

    def _take_over(self, topic: str, timeout: float) -> None:
        """Fence earlier producers of the id. On return Kafka has committed or aborted their open transaction.

        Without a connection librdkafka looks for the coordinator again after 0.5 s only. The first answer about
        ``topic``, any one, ends the connection to a bootstrap server; the second comes over that to a broker, which
        stays.
        """
        with self._mapped(f"take over the transactional id {self._id!r}"):
            try:
                self._producer.list_topics(topic, timeout)
                self._producer.list_topics(topic, timeout)
                self._producer.init_transactions(timeout)
            except KafkaException:
                self._producer.poll(0)  # only now the client says why it has no connection
                raise

    def _abort(self, timeout: float) -> None:
        with suppress(KafkaException):  # it is fenced, never began, or has ended
            self._producer.abort_transaction(timeout)

    def _remember(self, error: KafkaError) -> None:
        self._trouble = error

    def _read_log(self, facility: str, text: str) -> None:
        # Equal lines are not logged again for 30 s: so one line counts until the producer is replaced.
        if facility in _LOST_REQUESTS and "TxnCoordinator" in text:
            self._has_lost_requests = True

    @contextmanager
    def _mapped(self, action: str) -> Iterator[None]:
        """Raise our errors in place of the client's: LeaseLost where another producer of the id was opened."""
        try:
            with self._kafka.mapped_errors(action, lambda: self._trouble):
                yield
        except CompactoryError as failed:
            causes = (*getattr(failed.__cause__, "args", ()), self._trouble)  # a purged record says less than its cause
            if any(isinstance(error, KafkaError) and error.code() in _FENCED for error in causes):
                raise LeaseLost(f"another process took over the transactional id {self._id!r}") from failed
            raise
