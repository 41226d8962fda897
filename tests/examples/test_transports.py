"""The transports example on real Kafka and Postgres, by the commands of its README."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from compactory.kafka.client import Kafka
from compactory_cli.stack.port import free_port
from compactory_connectors.kafka.topic_reader import read
from tests.source.workload import wait_until
from tests.stack.command import run_command

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "transports"
README = (FOLDER / "README.md").read_text()


class Transports:
    """Customer, service and relay, each a process."""

    def __init__(self, environment: dict[str, str], kafka: str) -> None:
        self._environment = environment
        self.kafka = Kafka(kafka)
        found = re.search(r"CREATE TABLE transports [^']+", README)
        assert found is not None
        self.sql = psycopg.connect(environment["COMPACTORY_POSTGRES"], autocommit=True)
        self.sql.execute(found[0].encode())
        self.compactory("sql install")
        topics = [environment[name] for name in ("TRANSPORT_EVENTS", "TRANSPORT_NOTIFIED")]
        for name in topics:
            self.kafka.create_topic(name, partitions=4)
        wait_until(lambda: len(self.kafka.topics(topics)) == len(topics), what="the topics")
        assert "python examples/transports/customer.py &" in README
        assert "compactory outbox run &" in README
        commands = [["examples/transports/customer.py"], ["examples/transports/service.py"]]
        commands.append(["-m", "compactory_cli", "outbox", "run"])
        self._processes = [
            subprocess.Popen([sys.executable, *command], env=environment, cwd=ROOT) for command in commands
        ]

    def compactory(self, words: str) -> Any:
        assert f"compactory {words}" in README
        outcome = run_command([*words.split(), "--json"], folder=ROOT, environment=self._environment, timeout=60)
        assert outcome.returncode == 0, outcome.stderr
        return json.loads(outcome.stdout)

    def happens(self, *transports: str) -> None:
        producer = self.kafka.producer({"partitioner": "murmur2_random"}, {}, lambda _: None)
        for transport in transports:
            producer.produce(self._environment["TRANSPORT_EVENTS"], b"arrived", transport.encode())
        assert producer.flush(20) == 0

    def notified(self) -> list[str]:
        return [(m.key() or b"").decode() for m in read(self.kafka, self._environment["TRANSPORT_NOTIFIED"])]

    def mend(self) -> None:
        port = self._environment["CUSTOMER_PORT"]
        urllib.request.urlopen(f"http://127.0.0.1:{port}/mend", b"", timeout=10).close()

    def end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(30)
        self.sql.close()


@pytest.fixture
def transports(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Transports]:
    ours = {
        "COMPACTORY_POSTGRES": database, "COMPACTORY_KAFKA": kafka, "CUSTOMER_PORT": str(free_port()),
        "TRANSPORT_EVENTS": unique("transport-events"), "TRANSPORT_NOTIFIED": unique("transport-notified"),
    }  # fmt: skip
    found = Transports({**os.environ, **ours}, kafka)
    yield found
    found.end()


@pytest.mark.proof
def test_one_transport_waits_and_the_others_go_on(transports: Transports) -> None:
    """The pattern of the article: slow work is a job, its group the transport, its message goes through the outbox."""
    transports.happens("T1", "T1", "T2", "T3")
    wait_until(lambda: sorted(transports.notified()) == ["T2", "T3"], 60, "the others")
    waiting = transports.compactory("jobs list")["jobs"]
    held = [job for job in waiting if job["group"] == "T1" and job["state"] != "succeeded"]
    assert len(held) == 2
    transports.mend()
    wait_until(lambda: sorted(transports.notified()) == ["T1", "T1", "T2", "T3"], 30, "the one that waited")
    rows = transports.sql.execute("SELECT id, notified FROM transports ORDER BY id").fetchall()
    assert rows == [("T1", "arrived"), ("T2", "arrived"), ("T3", "arrived")]
    wait_until(lambda: transports.compactory("jobs status")["types"] == [], 10, "no job is left")
