"""Many writers, two relays that are killed, frozen and started again at any moment: Kafka ends with what was committed.

A writer that changes a key locks its row and publishes its next version, so that what depends on one another is known.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg
import pytest

from compactory.kafka.client import Kafka
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.outbox import Outbox, OutboxMessage
from compactory_connectors.schema import install
from tests.outbox.harness import Bench
from tests.source.proof import LONG
from tests.source.workload import wait_until
from tests.stack.apache_kafka import ApacheKafka
from tests.stack.crowd import Crowd, Undo
from tests.stack.mortal import Mortal

KEYS = [f"k{n}" for n in range(6)]
LARGE = 200  # messages in a batch: what has piled up is sent in seconds on a busy machine, too
FREEZES = "before sending"  # Postgres has done its part: once it wakes up, the fence alone keeps it from sending


class Services(Crowd):
    """Change keys, and publish messages that depend on nothing, whose ids they return."""

    def __init__(self, url: str, topics: list[str], seeded: random.Random) -> None:
        super().__init__(url, seeded, count=8)
        self._topics = topics
        self._outbox = Outbox()

    def write(self, connection: psycopg.Connection, random_: random.Random) -> list[int]:
        free: list[int] = []
        for key in sorted(random_.sample(KEYS, random_.randint(0, 2))):
            self._change(connection, random_, key)
        if random_.random() < 0.5:
            batch = [
                OutboxMessage(topic=random_.choice(self._topics), payload="free", key="free")
                for _ in range(random_.randint(1, 5))
            ]
            free = self._outbox.publish_list(connection, batch)
        if random_.random() < 0.5:
            self.wait(random_.random() * random_.choice((0.01, 0.03, 1.0)))  # others with higher ids commit before
        if random_.random() < 0.15:
            raise Undo
        return free

    def _change(self, connection: psycopg.Connection, random_: random.Random, key: str) -> None:
        statement = "UPDATE versions SET version = version + 1 WHERE topic = %s AND key = %s RETURNING version"
        for topic in self._topics:
            with suppress(Undo), connection.transaction():
                for _ in range(random_.randint(1, 2)):
                    row = connection.execute(statement, [topic, key]).fetchone()
                    assert row is not None
                    self._outbox.publish(connection, topic, str(row[0]), key=key)
                if random_.random() < 0.15:
                    raise Undo


def prepared(bench: Bench) -> list[str]:
    topics = [bench.topic(2), *(bench.topic() for _ in range(4))]  # more than the relays have threads
    bench.sql.execute("CREATE TABLE versions (topic text, key text, version int8, PRIMARY KEY (topic, key))")
    with bench.sql.cursor() as cursor:
        cursor.executemany("INSERT INTO versions VALUES (%s, %s, 0)", [(t, k) for t in topics for k in KEYS])
    return topics


def disturb(bench: Bench, relays: list[Mortal], random_: random.Random, wait: Callable[[float], object]) -> None:
    """Freeze one of the relays: at any moment, or with a batch in hand until the other relay has taken over.

    A relay that freezes with a batch in hand is a new one: the old one is killed.
    """
    number = random_.randrange(len(relays))
    if random_.random() < 0.3:
        relays[number].freeze()
        wait(random_.random() * 3)
    else:
        relays[number].end()
        relays[number] = relay = bench.mortal(FREEZES, "SIGSTOP", LARGE)
        with suppress(AssertionError, psycopg.Error):  # Postgres or Kafka is away
            wait_until(relay.stopped, 5, "a batch in hand")
            wait_until(lambda: not bench.holds(relay), 5, "the take-over")
        wait(random_.random())
    relays[number].resume()


def compare(bench: Bench, topics: list[str], free: set[int]) -> None:
    """What Kafka has is what was committed: all of it, once, each key's versions in order."""
    seen: set[int] = set()
    for topic in topics:
        versions: dict[str, list[int]] = defaultdict(list)
        for record in bench.sent(topic):
            assert record.id not in seen, f"{record.id} twice"
            seen.add(record.id)
            if record.key != "free":
                versions[str(record.key)].append(int(str(record.value)))
        for key, last in bench.sql.execute("SELECT key, version FROM versions WHERE topic = %s", [topic]).fetchall():
            assert versions[key] == list(range(1, last + 1)), (topic, key)
    assert free <= seen


def history(bench: Bench, seeded: random.Random, seconds: float, outages: Callable[[], object]) -> None:
    topics = prepared(bench)
    services = Services(bench.url, topics, seeded)
    relays = [bench.mortal(batch=LARGE), bench.mortal(batch=LARGE)]
    over = threading.Event()
    timer = threading.Timer(seconds, over.set)
    timer.start()
    with services.writing():
        while not over.is_set():
            disturb(bench, relays, seeded, over.wait)
            outages()

    def awake(relay: Mortal) -> Mortal:
        relay.resume()
        return relay

    wait_until(lambda: [awake(relay) for relay in relays] and bench.left() == 0, 60, "everything")
    for relay in relays:  # one that was frozen may have a batch to send again
        relay.send(signal.SIGTERM)
        wait_until(awake(relay).ended, 30, "the end of a relay")
    compare(bench, topics, services.committed)


def test_relays_that_are_killed_and_frozen_lose_and_repeat_nothing(bench: Bench, seeded: random.Random) -> None:
    """Guarantees 14 and 15: every committed message once, none of a rolled-back transaction, keys in order."""
    history(bench, seeded, 8.0, lambda: None)


@pytest.mark.parametrize("seconds", [LONG])
def test_long_histories_with_restarts_of_postgres_and_a_broker_that_is_away(
    own_outbox: tuple[Bench, PostgresServer, ApacheKafka], seeded: random.Random, seconds: float
) -> None:
    """Guarantees 14 and 15, with Postgres started again, killed, and a broker that is away for 30 s."""
    bench, postgres, kafka = own_outbox
    wait = threading.Event().wait

    def outages() -> None:
        chance = seeded.random()
        if chance < 0.1:
            postgres.kill()
            postgres.start()
            bench.sql.close()
            bench.sql = psycopg.connect(bench.url, autocommit=True)
        elif chance < 0.14:
            kafka.freeze()
            wait(30)
            kafka.thaw()

    history(bench, seeded, seconds, outages)


@pytest.fixture
def own_outbox(unique: Callable[[str], str]) -> Iterator[tuple[Bench, PostgresServer, ApacheKafka]]:
    """An outbox on servers that may be killed."""
    postgres, kafka = PostgresServer(), ApacheKafka()
    try:
        postgres.start()
        kafka.start()
        install(postgres.url())
        bench = Bench(postgres.url(), Kafka(kafka.address), kafka.address, unique)
        yield bench, postgres, kafka
        bench.close()
    finally:
        kafka.remove()
        postgres.remove()
