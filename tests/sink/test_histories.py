"""Processes that are killed, frozen and joined by others at any moment: the counters are exact at the end."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

import psycopg
import pytest

from compactory.kafka.client import Kafka, KafkaError, Message
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.schema import install
from tests.sink.harness import Bench
from tests.source.proof import LONG
from tests.source.workload import wait_until
from tests.stack.apache_kafka import ApacheKafka
from tests.stack.mortal import Mortal
from tests.stack.proxy import Proxy

LARGE = ("batch=500",)


def note(text: str) -> None:
    """Say when it happens; pytest shows it where the test fails, among the logs of the processes."""
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f} {text}", flush=True)


class Producing:
    """Produces in a thread of its own, and counts what Kafka has taken."""

    def __init__(self, bench: Bench, topic: str, seeded: random.Random) -> None:
        self._bench, self._topic, self._random = bench, topic, seeded
        self.produced: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
        assert self._bench.producer.flush(120) == 0

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for _ in range(self._random.randint(0, 20)):
                key = f"k{self._random.randrange(8)}"
                self._bench.producer.produce(self._topic, str(self._random.random()), key, on_delivery=self._taken)
            self._bench.producer.poll(0)

    def _taken(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.produced[(message.key() or b"").decode()] += 1
        else:
            note(f"not taken: {error.str()}")


def history(
    bench: Bench,
    seeded: random.Random,
    seconds: float,
    start: Callable[[str], Mortal],
    outages: Callable[[], object] = lambda: None,
    count: int = 3,
) -> None:
    topic = bench.topic(3)
    mortals = [start(topic) for _ in range(count)]
    over = threading.Event()
    timer = threading.Timer(seconds, over.set)
    timer.start()
    producing = Producing(bench, topic, random.Random(seeded.getrandbits(32)))
    with producing.running():
        while not over.is_set():
            number = seeded.randrange(len(mortals))
            if seeded.random() < 0.6:
                note(f"kill process {number}, {mortals[number].pid}")
                mortals[number].end()
                over.wait(seeded.random())
                mortals[number] = start(topic)
                note(f"started process {number}, {mortals[number].pid}")
            else:
                note(f"freeze process {number}")
                mortals[number].freeze()
                over.wait(seeded.random() * 8)  # past its session, or not
                mortals[number].resume()
                note(f"resumed process {number}")
            outages()
            over.wait(seeded.random() * 3)
    bench.wait_for_end(topic, 120)
    bench.compare(producing.produced)


def test_processes_that_are_killed_and_frozen_lose_and_repeat_nothing(bench: Bench, seeded: random.Random) -> None:
    """Guarantee 16: three processes, rebalances every few seconds."""
    history(bench, seeded, 4.0, lambda topic: bench.mortal(topic, "", "SIGKILL", *LARGE), count=2)


@dataclass
class Servers:
    """A sink on servers that may be killed, behind networks that may be cut."""

    bench: Bench
    postgres: PostgresServer
    kafka: ApacheKafka
    networks: tuple[Proxy, Proxy]
    """To Postgres and to Kafka."""

    def mortal(self, topic: str, *given: str) -> Mortal:
        to_postgres, to_kafka = self.networks
        url = self.bench.url.replace(f":{urlsplit(self.bench.url).port}", f":{to_postgres.port}")
        return self.bench.mortal(topic, "", "SIGKILL", *LARGE, *given, url=url, kafka=to_kafka.address)

    def outage(self, seeded: random.Random) -> None:
        """One of all kinds, or none."""
        wait = threading.Event().wait
        network, kind = seeded.choice(self.networks), seeded.randrange(10)
        note(f"outage {kind}, network to {'Postgres' if network is self.networks[0] else 'Kafka'}")
        match kind:
            case 0:
                self.postgres.kill()
                self.postgres.start()
                self._connect()
            case 1:
                self.postgres.stop()
                wait(seeded.random() * 3)
                self.postgres.start()
                self._connect()
            case 2:
                self.kafka.freeze()
                wait(10)
                self.kafka.thaw()
            case 3:
                self.kafka.stop() if seeded.random() < 0.5 else self.kafka.kill()
                wait(seeded.random() * 8)
                self.kafka.start()
            case 4 | 5:
                network.cut(reset=seeded.random() < 0.5)
            case 6:
                network.freeze()
                wait(seeded.random() * 8)
                network.thaw()
        note("outage over")

    def _connect(self) -> None:
        self.bench.sql.close()
        self.bench.sql = psycopg.connect(self.bench.url, autocommit=True)


@pytest.mark.parametrize(
    "given",
    [["partition.assignment.strategy=cooperative-sticky"], ["partition.assignment.strategy=range"]],
    ids=" ".join,
)
@pytest.mark.parametrize("seconds", [LONG])
def test_long_histories_with_outages_of_all_kinds(
    servers: Servers, seeded: random.Random, seconds: float, given: list[str]
) -> None:
    """Guarantee 16, with Postgres and Kafka killed, stopped and frozen, and networks to both that are cut."""
    history(
        servers.bench,
        seeded,
        seconds,
        lambda topic: servers.mortal(topic, *given),
        lambda: servers.outage(seeded),
    )


@pytest.fixture
def servers(unique: Callable[[str], str]) -> Iterator[Servers]:
    to_kafka = Proxy()
    kafka = ApacheKafka(listeners={"PROXIED": "PLAINTEXT"}, advertised={"PROXIED": to_kafka.address})
    to_kafka.target = int(kafka.listener("PROXIED").rpartition(":")[2])
    postgres = PostgresServer()
    try:
        postgres.start()
        kafka.start()
        install(postgres.url())
        to_postgres = Proxy(urlsplit(postgres.url()).port)
        bench = Bench(postgres.url(), Kafka(kafka.address), kafka.address, unique)
        yield Servers(bench, postgres, kafka, (to_postgres, to_kafka))
        bench.close()
        to_postgres.close()
    finally:
        to_kafka.close()
        kafka.remove()
        postgres.remove()


def test_a_database_that_is_restored_gets_the_records_since(bench: Bench) -> None:
    """Guarantee 16: an older backup has an older offset. Kafka's committed one is ahead and counts for nothing."""
    topic = bench.topic(2)
    bench.produce(topic, [(f"k{n % 5}", str(n)) for n in range(50)])
    assert _until_end(bench, topic)
    backup = bench.unique("backup").replace("-", "_")
    admin = bench.url.rpartition("/")[0] + "/postgres"
    name = bench.url.rpartition("/")[2]
    bench.sql.close()
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{backup}" TEMPLATE "{name}"')
    bench.sql = psycopg.connect(bench.url, autocommit=True)
    bench.produce(topic, [(f"k{n % 5}", str(n)) for n in range(50, 90)])
    assert _until_end(bench, topic)
    bench.sql.close()
    bench.url = bench.url.rpartition("/")[0] + f"/{backup}"
    bench.sql = psycopg.connect(bench.url, autocommit=True)
    assert sum(bench.applied().values()) == 50
    try:
        assert _until_end(bench, topic)
        bench.compare(Counter(f"k{n % 5}" for n in range(90)))
    finally:
        bench.sql.close()
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{backup}" WITH (FORCE)')


def _until_end(bench: Bench, topic: str) -> bool:
    sink = bench.sink(topic)
    bench.wait_for_end(topic)
    return sink.stop()


def test_a_postgres_that_is_away_is_waited_for(bench: Bench) -> None:
    """Guarantee 16, and the sink stays in its group meanwhile, alive and ready."""
    proxy = Proxy(urlsplit(bench.url).port)
    place = urlsplit(bench.url)
    url, bench.url = bench.url, bench.url.replace(f":{place.port}", f":{proxy.port}")
    try:
        topic = bench.topic()
        bench.produce(topic, [("k", "1")])
        sink = bench.sink(topic)
        bench.wait_for_values("1")
        wait_until(lambda: sink.board.is_ready, what="readiness")
        target, proxy.target = proxy.target, None
        proxy.cut(reset=True)
        bench.produce(topic, [("k", "2")])
        wait_until(lambda: sink.board.picture()["detail"] is not None, what="the outage")
        assert sink.board.live(300, 60)
        assert sink.board.is_ready
        proxy.target = target
        bench.wait_for_values("1", "2")
        bench.compare(Counter({"k": 2}))
    finally:
        bench.url = url
        proxy.close()
