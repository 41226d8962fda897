"""`JobExecutor`: runs the jobs of its partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any, Self

import structlog
from confluent_kafka import Consumer, TopicPartition

from compactory.errors import ConfigError, Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.postgres.jdbc_url import Connection, checked_url
from compactory_connectors.postgres.postgres_errors import postgres_errors

from .keeper import Keeper
from .partition_assignment import Assignment, FollowedConsumer, OwnConsumer, Share
from .registry import Jobs
from .statements import open_jobs
from .status import Board

__all__ = ["JobExecutor"]

log = structlog.get_logger("compactory.jobs")

_GRACE = 2.0  # seconds before the end of a stop when running handlers are asked to end


class JobExecutor:
    """Runs up to ``concurrency`` jobs of a database at a time. Thread-safe.

    ``postgres`` is a URL or DSN. It runs jobs whose origin maps to the partitions that a Kafka consumer group gives
    it: those of ``consumer``, which the service polls itself and subscribes with the callbacks ``on_assign`` and
    ``on_revoke`` of this executor, or of one of its own in ``group_id`` that follows ``topic`` at ``kafka``. Without
    any of them all executors that know the same types share 100 partitions. ``keep`` is how long finished jobs are
    kept. Any number of executors may run beside each other. Raises ConfigError with everything that is set wrongly,
    handlers and periodic jobs included.
    """

    def __init__(
        self,
        postgres: str | Connection,
        jobs: Jobs,
        concurrency: int = 30,
        *,
        consumer: Consumer | None = None,
        kafka: str | Mapping[str, Any] | Kafka | None = None,
        group_id: str | None = None,
        topic: str | None = None,
        keep: timedelta = timedelta(days=7),
    ) -> None:
        problems = [*jobs.problems(), *_problems(jobs, concurrency, keep, consumer, kafka, group_id, topic)]
        if problems:
            raise ConfigError(problems)
        self.board = Board()
        self._postgres = checked_url(postgres) if isinstance(postgres, str) else postgres
        self._assignment: Assignment = Share(jobs.handlers)
        if consumer is not None:
            self._assignment = FollowedConsumer(consumer, topic)
        elif kafka is not None and group_id is not None and topic is not None:
            self._assignment = OwnConsumer(kafka, group_id, topic)
        self._keeper = Keeper(self._postgres, jobs, concurrency, self._assignment, keep, self.board)

    def start(self) -> None:
        """Check database and group, then run in the background. Waits there for a database that is down.

        Raises ConfigError, and Unreachable for Kafka.
        """
        try:
            with postgres_errors(self._postgres), closing(open_jobs(self._postgres.conninfo, "start")):
                pass
        except Unreachable as error:
            self.board.note(detail=str(error))
            log.warning("jobs are not run yet", error=" ".join(str(error).split()))
        self._assignment.start()
        self._keeper.start()

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Take partitions over: the callback for ``on_assign`` of ``consumer.subscribe``."""
        if isinstance(self._assignment, FollowedConsumer):
            self._assignment.add(consumer, partitions)
            self._keeper.wake()

    def on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Give partitions up: the callback for ``on_revoke`` and ``on_lost``."""
        if isinstance(self._assignment, FollowedConsumer):
            self._assignment.remove(consumer, partitions)
            self._keeper.wake()

    def stop(self, timeout: float = 15.0) -> bool:
        """Wait for running jobs, and return the others. Return True if that ended within ``timeout`` seconds.

        In the last two seconds, handlers that still run are asked to end: coroutines and statements on the given
        connection are cancelled, and ``job.stopping`` is true. A handler that goes on keeps its job until the
        process ends. Idempotent.
        """
        deadline = time.monotonic() + timeout
        self._keeper.stopping.set()
        self._keeper.wake()
        if self._keeper.join(timeout - _GRACE):
            return True
        self._keeper.end_attempts_now.set()
        self._keeper.wake()
        return self._keeper.join(deadline - time.monotonic())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """True while all threads run."""
        return self._keeper.alive


def _problems(
    jobs: Jobs,
    concurrency: int,
    keep: timedelta,
    consumer: Consumer | None,
    kafka: str | Mapping[str, Any] | Kafka | None,
    group_id: str | None,
    topic: str | None,
) -> Iterator[str]:
    if not jobs.handlers:
        yield "there is no handler: decorate a function with @jobs.handler(TYPE)"
    if concurrency < 1:
        yield f"concurrency must be at least 1, not {concurrency}"
    if keep < timedelta(0):
        yield "keep must not be negative"
    if consumer is not None and (kafka is not None or group_id is not None):
        yield "give consumer=, or kafka= with group_id= and topic=, not both"
    own_group = [item is not None for item in (kafka, group_id, topic)]
    if consumer is None and any(own_group) and not all(own_group):
        yield "a group of its own needs all of kafka=, group_id= and topic="
