"""A source of the article's connector on a fresh database and topic, driven from the test."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.source.config.connector import ConnectorConfig, SoftDelete
from compactory_connectors.source.config.files import load_connector
from compactory_connectors.source.offsets.stored_offsets import Target
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.source.status.status import SourceState
from tests.source.harness import STAMP, Feed
from tests.source.workload import TERMINALS, wait_until

ARTICLE = Path(__file__).parents[2] / "examples" / "connectors" / "terminal_acquirer.json"


def article_environment(url: str, prefix: str) -> dict[str, str]:
    """What the placeholders of the article's connector stand for."""
    parts = urlsplit(url)
    return {
        "TPP_REFERENCE_DATA_DB_URL": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
        "TPP_REFERENCE_DATA_DB_USER": parts.username or "",
        "TPP_REFERENCE_DATA_DB_PASSWORD": "not checked",
        "TPP_KAFKA_TOPIC_PREFIX": prefix,
    }


class Running:
    """A source in a thread of its own; stopping it raises what ended it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.source.run(self._stop)
        except BaseException as error:  # noqa: BLE001 - raised by stop()
            self.error = error

    def wait_for(self, state: SourceState, timeout: float = 60.0) -> None:
        wait_until(lambda: self.source.status().state is state or self.error, timeout, f"state {state}")

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self.ended
        if self.error is not None:
            raise self.error


class Bench:
    """One connector on one table and topic."""

    def __init__(self, url: str, kafka: str, prefix: str) -> None:
        self.url, self.kafka, self.prefix = url, Kafka(kafka), prefix
        self.topic = f"{prefix}terminal_acquirer"
        self.sql = psycopg.connect(url, autocommit=True)
        self.sql.execute(TERMINALS)
        self._running: list[Running] = []

    def connector(self, **changes: Any) -> ConnectorConfig:
        config = load_connector(ARTICLE, environment=article_environment(self.url, self.prefix))
        changes = {"name": self.prefix, "poll_interval_ms": 50, **changes}
        if changes.get("soft_delete") is True:
            changes["soft_delete"] = SoftDelete("is_active")
        return replace(config, **changes)

    def once(self, *, timeout: float = 20.0, **changes: Any) -> None:
        Source(self.connector(**changes), self.kafka).run(threading.Event(), once=True, timeout=timeout)

    def start(self, **changes: Any) -> Running:
        running = Running(Source(self.connector(**changes), self.kafka))
        self._running.append(running)
        return running

    def add(self, *terminals: str) -> None:
        for terminal in terminals:
            self.sql.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES (%s, 'A')", [terminal])

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """Every committed record of the topic, none while it does not exist."""
        try:
            return [(message.key(), message.value()) for message in read(self.kafka, self.topic)]
        except ConfigError:
            return []

    def wait_for_records(self, count: int, timeout: float = 60.0) -> list[tuple[bytes | None, bytes | None]]:
        wait_until(lambda: len(self.records()) >= count, timeout, f"{count} records")
        return self.records()

    def close(self) -> None:
        self.sql.close()
        for running in self._running:
            if not running.ended:
                running.stop()


def paused_within_a_load(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Running:
    """A source of a full table, paused when three pages of 100 rows are in Kafka."""
    publish, published, begun = Publisher.publish, count(1), threading.Event()

    def observed(publisher: Publisher, *given: Any) -> None:
        publish(publisher, *given)
        if next(published) == 3:
            assert begun.wait(20)
            running.source.orders.set_target(Target.PAUSED)

    monkeypatch.setattr(Publisher, "publish", observed)
    running = bench.start(batch_max_rows=100)
    begun.set()
    running.wait_for(SourceState.PAUSED)
    assert len(bench.records()) == 300
    return running


@pytest.fixture
def bench(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Bench]:
    """The article's connector on the run's Postgres and Kafka."""
    bench = Bench(database, kafka, f"{unique('s')}-")
    yield bench
    bench.close()


@pytest.fixture(params=["xmin", "adopted"])
def adopted(request: pytest.FixtureRequest) -> bool:
    return request.param == "adopted"


@pytest.fixture
def sql(database: str, adopted: bool) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TERMINALS)
        if adopted:
            connection.execute(STAMP)
        yield connection


@pytest.fixture
def feed(database: str, sql: psycopg.Connection, adopted: bool) -> Iterator[Feed]:
    feed = Feed(database, adopted=adopted)
    yield feed
    feed.close()


@pytest.fixture(scope="module")
def shared(postgres_server: PostgresServer) -> Iterator[str]:
    """URL of a database for all tests of this module."""
    name = f"shared_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield postgres_server.url(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
