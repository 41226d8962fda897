"""Servers for the tests: one real Kafka a run, one real Postgres a test process; topics and databases are fresh.

All test processes use the Kafka that their controller starts. Each has a Postgres of its own: a snapshot spans all
databases of a server, so an open transaction of one test would hold back the sources of all others.

Where Java or Maven is missing, tests that need Apache Kafka are skipped by name; with CI=true that fails instead.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import hypothesis
import psycopg
import pytest
from xdist.scheduler import LoadFileScheduling

from compactory.errors import Unreachable
from compactory_cli.stack import postgres
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.schema import install
from tests.stack import apache_kafka, memory, postgres_versions
from tests.stack.apache_kafka import ApacheKafka, RunningKafka, new_admin
from tests.stack.postgres_copies import new_server
from tests.store.pausing import resume

# Another process may have the core for long. With CI=true Hypothesis still chooses the same examples each time.
hypothesis.settings.register_profile("tests", parent=hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("tests")

_OF_ALL = pytest.StashKey[ApacheKafka]()
_TOGETHER = ("tests/spark/", "tests/security/")  # Spark's JVM, and a Kafka with TLS and SASL
_WITH_OWN_KAFKA = (  # and so is a Kafka to be harmed
    "tests/source/runtime/test_between_parts.py",
    "tests/source/runtime/test_lease.py",
    "tests/source/test_killed_source.py",
    "tests/store/ingest/test_interruptions.py",
    "tests/store/ingest/test_start_stale.py",
    "tests/store/ingest/test_waiting.py",
    "tests/store/test_async_store.py",
    "tests/store/test_figures.py",
    "tests/store/write/test_writer_failures.py",
)
_numbers = itertools.count(1)
_run = uuid.uuid4().hex[:6]


def pytest_configure(config: pytest.Config) -> None:
    """TEST_POSTGRES=13 has all servers of tests be of that version; TMPDIR=/tmp keeps what they write on disk."""
    memory.use_folder()
    if version := postgres_versions.chosen():
        found = postgres_versions.binaries(version)
        postgres.embedded_binaries = lambda: found


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """The controller of several test processes starts the Kafka of all of them, and tells each its address."""
    if apache_kafka.missing():
        return
    server = node.config.stash.setdefault(_OF_ALL, ApacheKafka())
    with contextlib.suppress(Unreachable):  # the tests that need it say why
        server.launch()
        node.workerinput["kafka"] = server.address


def pytest_unconfigure(config: pytest.Config) -> None:
    """The Kafka of all test processes ends after the last of them, however the run ends."""
    if _OF_ALL in config.stash:
        config.stash[_OF_ALL].remove()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Markers follow from the fixtures that a test asks for. What takes longest begins first."""
    items.sort(key=lambda item: not item.nodeid.startswith((*_TOGETHER, *_WITH_OWN_KAFKA)))
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if not fixtures.isdisjoint({"kafka", "own_kafka", "own_kafka_server", "secured_kafka"}):
            item.add_marker(pytest.mark.kafka)
        if not fixtures.isdisjoint({"postgres_server", "own_postgres"}):
            item.add_marker(pytest.mark.postgres)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the cyclic collector what lives as long as the run: all modules and tests of a process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class _ByFile(LoadFileScheduling):
    """Files go to test processes whole; those that share a server that takes long to start all go to one."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_WITH_OWN_KAFKA):
            return "own_kafka"
        return next((folder for folder in _TOGETHER if nodeid.startswith(folder)), super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """What ``--dist loadfile`` means here; files are handed out in the order of the items."""
    config.option.loadscopereorder = False
    return _ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def needs_apache_kafka() -> None:
    """Skip where Apache Kafka can't be run; with CI=true fail."""
    lacking = apache_kafka.missing()
    if lacking:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"Apache Kafka is needed: {lacking}")


@pytest.fixture(scope="session")
def apache_kafka_server(request: pytest.FixtureRequest) -> Iterator[RunningKafka]:
    """The Apache Kafka that all tests of the run use."""
    needs_apache_kafka()
    if address := getattr(request.config, "workerinput", {}).get("kafka"):
        running = RunningKafka(address)
        running.wait()
        yield running
        return
    server = ApacheKafka()
    try:
        server.start()
        yield RunningKafka(server.address)
    finally:
        server.remove()


@pytest.fixture(scope="module")
def cleared_kafka(apache_kafka_server: RunningKafka) -> Iterator[RunningKafka]:
    """The Kafka of all tests; topics of a module go with it, for a broker looks after each of them all the time."""
    yield apache_kafka_server
    admin = new_admin({"bootstrap.servers": apache_kafka_server.address})
    left = [name for name in admin.list_topics(timeout=30).topics if f"-{_run}-" in name]
    for deleted in (admin.delete_topics(left) if left else {}).values():
        deleted.exception()


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> str:
    """Bootstrap address of Apache Kafka 4.x: of ``own_kafka`` in a test that asks for it as well."""
    server = "own_kafka" if "own_kafka" in request.fixturenames else "cleared_kafka"
    return request.getfixturevalue(server).address


@pytest.fixture(scope="session")
def own_kafka_server() -> Iterator[ApacheKafka]:
    """The Apache Kafka that tests of a process may harm, one after the other."""
    needs_apache_kafka()
    server = ApacheKafka(heap="320m")
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def own_kafka(own_kafka_server: ApacheKafka) -> Iterator[ApacheKafka]:
    """A running Apache Kafka that a test may pause, stop and change: no other test uses it meanwhile.

    It stands still between two tests, for an idle one costs as much as a start each minute.
    """
    resume(own_kafka_server)
    yield own_kafka_server
    own_kafka_server.freeze()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The run's Postgres; prepared transactions are on."""
    server = new_server(settings={"fsync": "off", "max_prepared_transactions": "10"})
    try:
        server.start()
        psycopg.connect(server.url("template1")).close()  # leaves a file there that makes first connections cheap
        yield server
    finally:
        server.remove()


@contextlib.contextmanager
def copied(server: PostgresServer, name: str, template: str = "template1") -> Iterator[str]:
    name = name.replace("-", "_")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        # Copying pages through the log, as is the default since Postgres 15, takes twice the CPU of copying files.
        strategy = "STRATEGY file_copy" if connection.info.server_version >= 150000 else ""
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" {strategy}')
    yield server.url(name)
    if server.running:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture
def database(postgres_server: PostgresServer, unique: Callable[[str], str]) -> Iterator[str]:
    """URL of a fresh, empty database, dropped afterwards."""
    with copied(postgres_server, unique("db")) as url:
        yield url


@cache
def installed_template(server: PostgresServer) -> str:
    """A database with Compactory's tables and functions, to be copied."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE installed")
    install(server.url("installed"))
    return "installed"


@pytest.fixture
def migrated(postgres_server: PostgresServer, unique: Callable[[str], str]) -> Iterator[str]:
    """URL of a fresh database with Compactory's tables and functions, dropped afterwards."""
    with copied(postgres_server, unique("db"), installed_template(postgres_server)) as url:
        yield url


@pytest.fixture
def conn(migrated: str) -> Iterator[psycopg.Connection]:
    """A service's connection."""
    with psycopg.connect(migrated) as connection:
        yield connection


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
