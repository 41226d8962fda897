"""The sink: a thread that polls a group's partitions and applies each batch in one Postgres transaction."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, Literal

from compactory.errors import ConfigError, Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.consumer_group import Group, split_topics
from compactory_connectors.kafka.group_worker import GroupThread
from compactory_connectors.postgres.jdbc_url import Connection, checked_url
from compactory_connectors.postgres.pausing import Pauses
from compactory_connectors.postgres.postgres_errors import postgres_errors

from .applying import Applying, Handler, Prepare
from .locator import Locator, Start
from .record import SinkStopped
from .session import Session
from .statements import open_sink
from .status import Board

__all__ = ["TransactionalSink"]

_MAX_POLL_MS = 300_000  # the client's default

_NOT_RUN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class TransactionalSink(GroupThread[Group]):
    """Applies the records of topics to a database, each once. Thread-safe; start it once.

    ``handler(connection, records)`` writes in the open transaction, for records of one partition in their order. If it
    raises an error of a record (anything but an outage), the record is set aside, or with ``on_failure="stop"`` the
    sink ends. A topic that begins with ``^`` is a pattern in Java's syntax for whole names. Processes with the same
    ``name`` share the partitions. ``batch`` is the most records in a transaction, ``transaction_timeout`` the seconds
    for a statement or a pause in a transaction. ``prepare(records)`` is called before the handler in a thread of its
    own: after the handler's call for the batch before, or when that call calls ``records.prepare_next()``. It may set
    ``records.prepared``; prepared records may never be applied. ``start`` is for partitions that were never used.
    ``group_id`` and ``properties`` are the consumer's. Raises ConfigError with all problems.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, Any] | Kafka,
        postgres: str | Connection,
        topics: Iterable[str],
        handler: Handler,
        *,
        name: str,
        prepare: Prepare | None = None,
        group_id: str | None = None,
        batch: int = 10_000,
        on_failure: Literal["set_aside", "stop"] = "set_aside",
        start: Start = "earliest",
        transaction_timeout: float = 60.0,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        super().__init__("sink", name)
        self.board = Board()
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        self._properties = dict(properties or {})
        client_properties = {**self._properties, **self._kafka.properties()}
        limit = float(client_properties.get("max.poll.interval.ms", _MAX_POLL_MS)) / 1000
        problems = ["batch must be at least 1"] if batch < 1 else []
        if not name or not self._topics:
            problems.append("name and topics must not be empty")
        problems += [
            f"{label} is async or a generator, which nothing would run: use a plain function"
            for label, function in (("handler", handler), ("prepare", prepare))
            if any(kind(function) for kind in _NOT_RUN)
        ]
        try:
            split_topics(self._topics)
        except ValueError as error:
            problems.append(f"topics: a pattern {error}")
        if not 0 < transaction_timeout < limit:
            problems.append(
                f"transaction_timeout must be between 0 and max.poll.interval.ms, which is {limit:g} s: a member that"
                " works for longer loses its partitions"
            )
        if problems:
            raise ConfigError(problems)
        self._postgres = checked_url(postgres) if isinstance(postgres, str) else postgres
        self._group_id = group_id or f"compactory-sink-{name}"
        self._batch = batch
        self._applier = partial(Applying, sink=name, handler=handler, preparing=prepare, stops=on_failure == "stop")
        self._start: Start = start
        self._timeout = transaction_timeout

    def _check(self) -> None:
        with self._opened():
            named = [topic for topic in self._topics if not topic.startswith("^")]
            missing = set(named) - set(self._kafka.topics(named))
        if missing:
            raise ConfigError(f"topic {topic!r} does not exist; create it" for topic in sorted(missing))

    def _join(self) -> Group:
        return Group(self._kafka, self._topics, self._group_id, self._properties, SinkStopped)

    def _live(self, group: Group, worked: Callable[[], None]) -> None:
        with ExitStack() as stack:
            try:
                applying = stack.enter_context(self._opened())
            except ConfigError as error:  # after a successful check: a new password or a failover may follow
                raise Unreachable("Postgres", str(error)) from error
            locator = Locator(self._kafka, applying.table, self.name, self._start, group.committed)
            pauses = Pauses(applying.connection, "sink")
            Session(group, locator, applying, pauses, self.board, self._stop, self._batch, worked).run()

    @contextmanager
    def _opened(self) -> Iterator[Applying]:
        """Yield the applier of a new connection. Raises Unreachable, ConfigError."""
        with (
            postgres_errors(self._postgres),
            closing(open_sink(self._postgres.conninfo, self.name, self._timeout)) as connection,
        ):
            yield self._applier(connection=connection)
