"""All parts at work on one cluster: no part ends, loses anything or does anything twice, whatever its brokers do."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self

import psycopg

from compactory import GlobalStore
from compactory.kafka.client import Kafka
from compactory_connectors.jobs import Job, JobExecutor, Jobs
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.outbox import Outbox, OutboxRelay
from compactory_connectors.processors import ProcessRunner
from compactory_connectors.schema import Adoption, adopt, install
from tests.api.serving import ask
from tests.api.test_write_histories import JSON, Cluster
from tests.processors.harness import committed, registration
from tests.sink.harness import Bench
from tests.source.outages import Child, Writer
from tests.source.workload import TERMINALS
from tests.store.topics import Topics, eventually

__all__ = ["Everything"]

TABLE = "terminal_acquirer"


class Everything:
    """A source and a store, an outbox and its relay, a sink, jobs, two servers of a mastered directory, a processor."""

    def __init__(self, kafka: str, database: str, unique: Callable[[str], str], folder: Path) -> None:
        self.kafka, self.database = kafka, database
        topics = Topics(kafka, unique)
        names = ("orders", "jobbed", "tenants", "created", "failed")
        self.orders, self.jobbed, self.tenants, self.created, self.failed = (
            topics.create(3, unique(name), replicas=3) for name in names
        )
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(TERMINALS)
            install(connection)
            adopt(connection, Adoption(table=TABLE, key=("terminal_id",)))
        self.sunk = Bench(database, Kafka(kafka), kafka, unique)
        self.servers = Cluster(kafka, self.tenants)
        self.store = GlobalStore(
            {"bootstrap.servers": kafka, "client.rack": "rack-2"}, [TABLE], missing_topic="wait", start_timeout=60.0
        )
        self.relay = OutboxRelay(database, kafka)
        self.jobs = Jobs()
        self.jobs.handler("publish")(self._publish_job)
        self.executor = JobExecutor(database, self.jobs)
        chain = registration(unique("chain"), self.tenants, self.created, self.failed, str(folder / "book"))
        self.runner = ProcessRunner(kafka, chain)
        self.published: Counter[str] = Counter()
        self.enqueued = 0
        self.written: set[str] = set()  # the marks of acknowledged writes
        self.unready = 0  # how often a server was not ready
        self._stop = threading.Event()

    @property
    def topics(self) -> list[str]:
        return [self.orders, self.jobbed, self.tenants, self.created, self.failed, TABLE]

    @contextmanager
    def at_work(self) -> Iterator[Self]:
        """Have all of it work; on leaving, wait until the last record has arrived, and compare."""
        writer = Writer(self.database)
        with ExitStack() as stack:
            stack.callback(self.sunk.close)
            stack.callback(self.servers.stop)
            source = Child(self.database, self.kafka, "")
            stack.callback(source.stop)
            self.servers.start(2)
            self.sunk.sink(self.orders)
            for part in (self.store, self.relay, self.executor, self.runner):
                stack.enter_context(part)
            works = [self._publish, self._enqueue, self._write, self._probe]
            threads = [threading.Thread(target=work) for work in works]
            with writer.writing():
                for thread in threads:
                    thread.start()
                try:
                    yield self
                finally:
                    self._stop.set()
                    for thread in threads:
                        thread.join()
            self._settle()
            self._compare()

    def check(self) -> None:
        """Nothing has ended, and the store answers."""
        assert self.store.ready
        assert self.relay.alive
        assert self.executor.alive
        assert self.runner.alive
        assert [process.poll() for process in self.servers.processes] == [None, None]

    def _publish(self) -> None:
        with psycopg.connect(self.database) as connection:
            while not self._stop.wait(0.01):
                key = f"k{sum(self.published.values()) % 50}"
                Outbox().publish(connection, self.orders, b"{}", key=key)
                connection.commit()
                self.published[key] += 1

    def _enqueue(self) -> None:
        with psycopg.connect(self.database) as connection:
            while not self._stop.wait(0.05):
                self.jobs.enqueue(connection, "publish", {"n": self.enqueued}, group=f"g{self.enqueued % 5}")
                connection.commit()
                self.enqueued += 1

    def _publish_job(self, job: Job[Any], connection: psycopg.Connection[Any]) -> None:
        Outbox().publish(connection, self.jobbed, json.dumps(job.payload).encode(), key=job.group)

    def _write(self) -> None:
        count = 0
        while not self._stop.wait(0.02):
            count += 1
            eventually(partial(self._is_written, count), 300)
            self.written.add(f"m{count}")

    def _is_written(self, count: int) -> bool:
        mark = f"m{count}"
        body = json.dumps({"mark": mark, "email": f"{mark}@x"}).encode()
        path, headers = f"/v1/directories/tenants/entries/t{count % 20}", {**JSON, "Idempotency-Key": mark}
        with suppress(OSError, HTTPException):
            answer = ask(self.servers.ports[count % 2], path, "PUT", body=body, headers=headers, timeout=15)
            assert answer.status in (200, 201, 503), answer
            return answer.status != 503
        return False

    def _probe(self) -> None:
        while not self._stop.wait(0.1):
            self.unready += sum(not self.servers.answers(number) for number in (0, 1))

    def _settle(self) -> None:
        kafka = Kafka(self.kafka)
        eventually(lambda: self._entries() == self._rows(), 60)
        eventually(lambda: len(list(read(kafka, self.orders))) >= sum(self.published.values()), 60)
        eventually(lambda: len(list(read(kafka, self.jobbed))) >= self.enqueued, 60)
        eventually(lambda: len(committed(self.kafka, self.created)) >= len(self.written), 60)
        self.sunk.wait_for_end(self.orders)

    def _compare(self) -> None:
        kafka = Kafka(self.kafka)
        self.sunk.compare(self.published)
        jobs = [json.loads(message.value() or b"")["n"] for message in read(kafka, self.jobbed)]
        assert Counter(jobs) == Counter(range(self.enqueued))
        log = [value["mark"] for _, value in committed(self.kafka, self.tenants) if value is not None]
        assert Counter(log) == Counter(self.written)
        assert self.unready == 0
        outcomes = [value for _, value in committed(self.kafka, self.created)]
        assert Counter(value["mark"] for value in outcomes) == Counter(self.written)
        assert [value for _, value in committed(self.kafka, self.failed) if value is not None] == []

    def _entries(self) -> dict[int, str]:
        return {entry["id"]: entry["acquirerId"] for entry in self.store[TABLE].values()}

    def _rows(self) -> dict[int, str]:
        with closing(psycopg.connect(self.database)) as connection:
            return dict(connection.execute(f"SELECT id, acquirer_id FROM {TABLE}").fetchall())
