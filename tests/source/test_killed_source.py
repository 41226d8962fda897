"""Many writers at once, and a source that is killed again and again: its topics end as the tables.

The same writers as in ``test_histories``, each in a thread of its own, against ``compactory source run`` on Kafka.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest

from compactory.errors import Unreachable
from compactory.kafka.client import Kafka
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.kafka.topic_reader import read
from tests.source.child import Child
from tests.source.history import Layout, Shared, create, living
from tests.source.history_follower import values
from tests.source.history_writer import Writer
from tests.source.poller import settings
from tests.source.proof import LONG
from tests.source.workload import wait_until
from tests.stack.crowd import working
from tests.stack.postgres_copies import new_server

# an open transaction of a dead source keeps other sources from reading the offsets, until Kafka ends it
pytestmark = pytest.mark.usefixtures("own_kafka")

LAYOUTS = [
    Layout(partitioned=partitioned, soft=True, adopted=adopted, table=f"terminal_{number}")
    for number, (partitioned, adopted) in enumerate([(False, False), (False, True), (True, False), (True, True)])
]


class Crowd:
    """Two writers a table in threads; a server that crashes is waited for."""

    def __init__(self, url: str, seeded: random.Random) -> None:
        self._stop = threading.Event()
        self._writers = [
            Writer(url, f"{layout.table} {number}", random.Random(seeded.getrandbits(32)), shared)
            for layout in LAYOUTS
            for shared in [Shared(layout)]
            for number in range(2)
        ]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write until the block ends, then end every transaction."""
        with working(self._stop, [partial(self._work, writer) for writer in self._writers]):
            yield
        for writer in self._writers:
            writer.finish()
            writer.close()

    def _work(self, writer: Writer) -> None:
        chance = random.Random()
        while not self._stop.wait(chance.random() * 0.01):
            try:
                (writer.alone if chance.random() < 0.03 else writer.step)()
            except psycopg.OperationalError:
                wait_until(lambda: _reconnected(writer), what="the server")


def _reconnected(writer: Writer) -> bool:
    with suppress(psycopg.OperationalError):
        writer.reconnect()
        return True
    return False


@pytest.fixture
def forgetful() -> Iterator[PostgresServer]:
    """A server that answers a commit before it is on disk."""
    given = {"synchronous_commit": "off", "wal_writer_delay": "1s", "max_prepared_transactions": "40", "fsync": "off"}
    server = new_server(settings=given)
    server.start()
    yield server
    server.remove()


@pytest.mark.parametrize("seconds", [pytest.param(3, id="short"), LONG])
def test_the_topics_end_as_the_tables(
    forgetful: PostgresServer,
    kafka: str,
    unique: Callable[[str], str],
    seconds: float,
    seeded: random.Random,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Guarantees 8 and 9: kill -9 of the source at any moment, and of the server, which forgets commits then."""
    url, prefix = forgetful.url(), f"{unique('k')}-"
    with psycopg.connect(url, autocommit=True) as connection:
        for layout in LAYOUTS:
            create(connection, layout)
    source = Child(tmp_path / "connector.json", _connector(url, prefix), kafka)
    request.addfinalizer(source.end)
    source.start()
    ends = time.monotonic() + seconds
    crashes = 0
    with Crowd(url, seeded).writing():
        while time.monotonic() < ends:
            _wait_for_progress(Kafka(kafka), prefix, seeded.randint(20, 150))
            if seeded.random() < 0.3 or not crashes:
                crashes += 1
                forgetful.kill()
                wait_until(lambda: _started(forgetful), what="the start of a killed server")
            if seeded.random() < 0.8:
                source.kill()
                source.start()
    source.kill()
    source.finish()
    for layout in LAYOUTS:
        topic, table = values(_newest(Kafka(kafka), f"{prefix}{layout.table}")), living(url, layout)
        if not layout.adopted:  # hard deletes of such a table wait for a sweep
            topic = {key: value for key, value in topic.items() if key in table}
        assert topic == table, f"{layout}: {source.log}"


def _connector(url: str, prefix: str) -> dict[str, object]:
    changes = {
        "topic__prefix": prefix,
        "table__whitelist": ",".join(layout.table for layout in LAYOUTS),
        "table__types": "TABLE,PARTITIONED TABLE",
        "poll__interval__ms": "50",
        "batch__max__rows": "9",
        "compactory__soft__delete__column": "is_active",
        "compactory__max__removed__percent": "100",
    }
    return {"name": prefix, **settings(url, "timestamp+incrementing", **changes)}


def _newest(kafka: Kafka, topic: str) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    if kafka.topics([topic]):
        for message in read(kafka, topic):
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            found.pop(key, None)
            if isinstance(value, bytes):
                found[key] = value
    return found


def _wait_for_progress(kafka: Kafka, prefix: str, records: int) -> None:
    def count() -> int:
        topics = [topic for topic in (f"{prefix}{layout.table}" for layout in LAYOUTS) if kafka.topics([topic])]
        partitions = [part for topic in topics for part in kafka.topics([topic])[topic].all()]
        return sum(kafka.high_watermarks(partitions).values()) if partitions else 0

    before = count()
    wait_until(lambda: count() >= before + records, 90, what="progress")


def _started(server: PostgresServer) -> bool:
    try:
        server.start()
    except Unreachable:
        return False
    return True
