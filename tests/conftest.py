"""Servers for the tests: one real Postgres and one real Kafka a run, isolated by fresh databases and topic names.

Where Java or Maven is missing, tests that need Apache Kafka are skipped by name; with CI=true that fails instead.
"""

from __future__ import annotations

import itertools
import os
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from xdist.scheduler import LoadFileScheduling

from compactory_cli.stack import postgres
from compactory_cli.stack.postgres import PostgresServer
from tests.stack import apache_kafka, postgres_versions
from tests.stack.apache_kafka import ApacheKafka

_numbers = itertools.count(1)
_run = uuid.uuid4().hex[:6]


def pytest_configure() -> None:
    """TEST_POSTGRES=13 has all servers of tests be of that version."""
    if version := postgres_versions.chosen():
        found = postgres_versions.binaries(version)
        postgres.embedded_binaries = lambda: found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Markers follow from the fixtures that a test asks for."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if not fixtures.isdisjoint({"apache_kafka_server", "own_kafka", "secured_kafka"}):
            item.add_marker(pytest.mark.kafka)
        if not fixtures.isdisjoint({"postgres_server", "own_postgres"}):
            item.add_marker(pytest.mark.postgres)


class _ByFile(LoadFileScheduling):
    """Files go to test processes whole; all that share a Spark session go to one, as each starts a cold JVM."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/spark" if nodeid.startswith("tests/spark/") else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """What ``--dist loadfile`` means here."""
    return _ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def needs_apache_kafka() -> None:
    """Skip where Apache Kafka can't be run; with CI=true fail."""
    lacking = apache_kafka.missing()
    if lacking:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"Apache Kafka is needed: {lacking}")


@pytest.fixture(scope="session")
def apache_kafka_server() -> Iterator[ApacheKafka]:
    """The run's Apache Kafka."""
    needs_apache_kafka()
    server = ApacheKafka()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def kafka(apache_kafka_server: ApacheKafka) -> str:
    """Bootstrap address of Apache Kafka 4.x."""
    return apache_kafka_server.address


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The run's Postgres; prepared transactions are on."""
    server = PostgresServer(settings={"fsync": "off", "max_prepared_transactions": "10"})
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def database(postgres_server: PostgresServer, unique: Callable[[str], str]) -> Iterator[str]:
    """URL of a fresh, empty database, dropped afterwards."""
    name = unique("db").replace("-", "_")
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield postgres_server.url(name)
    if postgres_server.running:
        with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Makes names that no other test of this or an earlier run has used."""
    return lambda prefix: f"{prefix}-{_run}-{next(_numbers)}"


@pytest.fixture
def seeded() -> random.Random:
    """A random generator whose seed is printed with a failing test; set TEST_SEED to repeat it."""
    seed = int(os.environ.get("TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"TEST_SEED={seed}")
    return random.Random(seed)
