"""A producer under a transactional id, of which only the one that was opened last works (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from compactory.errors import CompactoryError, LeaseLost
from compactory.kafka.client import Kafka, KafkaError, KafkaException

__all__ = ["TransactionalProducer"]

_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)  # noqa: SLF001


class TransactionalProducer:
    """A producer with a transactional id; a subclass sends records. Owned by one thread."""

    def __init__(
        self, kafka: Kafka, transactional_id: str, settings: Mapping[str, Any], own: Mapping[str, Any]
    ) -> None:
        self._kafka = kafka
        self._id = transactional_id
        self._trouble: KafkaError | None = None  # the last error of the client as a whole
        self._producer = kafka.producer(settings, own, self._remember)

    def close(self) -> None:
        """Discard unsent records without waiting. An open transaction ends by its time-out or by the next producer.

        To be called once. The client ends its threads here: its callbacks refer back to this object, so that otherwise
        they would live until the cyclic garbage collector comes by.
        """
        self._producer.purge()
        with suppress(KafkaException):  # a producer that failed for good says so again, and would hide the first time
            self._producer.flush(0)
        del self._producer

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

    @contextmanager
    def _mapped(self, doing: str) -> Iterator[None]:
        """Raise our errors in place of the client's: LeaseLost where another producer of the id was opened."""
        try:
            with self._kafka.mapped_errors(doing, lambda: self._trouble):
                yield
        except CompactoryError as failed:
            causes = (*getattr(failed.__cause__, "args", ()), self._trouble)  # a purged record says less than its cause
            if any(isinstance(error, KafkaError) and error.code() in _FENCED for error in causes):
                raise LeaseLost(f"another process took over the transactional id {self._id!r}") from failed
            raise
