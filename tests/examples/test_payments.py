"""The payments example on real Kafka, Postgres and a source: the article's use, with Postgres stopped meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compactory_cli.stack.port import free_port
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.schema import Adoption, adopt
from compactory_connectors.source.config.files import load_connector
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.source.status.status import SourceState
from compactory_sql import read
from tests.source.conftest import ARTICLE, Running, article_environment
from tests.source.workload import wait_until
from tests.stack.postgres_copies import new_server
from tests.store.topics import Topics

EXAMPLES = Path(__file__).parents[2] / "examples"
TERMINALS = 200


class Service:
    """The example in a process of its own."""

    def __init__(self, kafka: str, prefix: str) -> None:
        self._listen = f"127.0.0.1:{free_port()}"
        settings = {"PAYMENTS_KAFKA": kafka, "PAYMENTS_TOPIC_PREFIX": prefix, "PAYMENTS_LISTEN": self._listen}
        command = [sys.executable, EXAMPLES / "payments" / "service.py"]
        self._process = subprocess.Popen(command, env={**os.environ, **settings})
        try:
            wait_until(self.ready, what="readiness")
        except BaseException:
            self.kill()
            raise

    def ready(self) -> bool:
        assert self._process.poll() is None, "the service ended"
        try:
            return urllib.request.urlopen(f"http://{self._listen}/readyz", timeout=2).status == 200
        except OSError:  # not listening yet, or 503
            return False

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        """What a test that failed left running."""
        self.kill()


class Output:
    """Reads a topic from its beginning, in the background of the test."""

    def __init__(self, kafka: str, topic: str) -> None:
        settings = {"bootstrap.servers": kafka, "group.id": "test", "enable.auto.commit": False}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
        self.records: list[tuple[dict[str, Any], dict[str, bytes]]] = []

    def take(self) -> list[tuple[dict[str, Any], dict[str, bytes]]]:
        for message in self._consumer.consume(1000, 0.1):
            assert message.error() is None, message.error()
            self.records.append((json.loads(message.value()), dict(message.headers() or ())))
        return self.records

    def ids(self) -> list[str]:
        return [record["transactionId"] for record, _ in self.take()]

    def close(self) -> None:
        self._consumer.close()


class Till:
    """Produces transactions, one terminal after the other."""

    def __init__(self, kafka: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5})
        self._topic = topic
        self.count = 0

    def sell(self, number: int = 1, terminal: str | None = None) -> None:
        for _ in range(number):
            self.count += 1
            terminal_id = terminal or f"T{self.count % TERMINALS + 1}"
            value = {"id": f"X{self.count}", "terminalId": terminal_id, "amount": self.count}
            self._producer.produce(self._topic, json.dumps(value).encode(), f"X{self.count}".encode())
        assert self._producer.flush(20) == 0


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    server = new_server(settings={"fsync": "off"})
    try:
        server.start()
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(read("templates/terminal_acquirer.sql"))
            connection.execute(
                "INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
                f" SELECT 'T' || n, 'A' || n % 7 FROM generate_series(1, {TERMINALS}) AS n"
            )
            adopt(connection, Adoption(table="terminal_acquirer", key=("terminal_id",), active="is_active"))
        yield server
    finally:
        server.remove()


@pytest.fixture
def prefix(kafka: str, unique: Callable[[str], str]) -> str:
    """Of topics that exist, with two partitions where the example's are."""
    found = unique("pay") + "-"
    topics = Topics(kafka, unique)
    for name in ("transactions", "authorizations", "rejected-transactions"):
        topics.create(2, f"{found}{name}", cleanup_policy="delete")
    return found


@contextmanager
def publishing(server: PostgresServer, kafka: str, prefix: str) -> Iterator[Running]:
    """A source of the article's connector."""
    connector = load_connector(ARTICLE, environment=article_environment(server.url(), prefix))
    running = Running(Source(replace(connector, name=f"{prefix}payments", poll_interval_ms=200), kafka))
    try:
        running.wait_for(SourceState.RUNNING)
        wait_until(lambda: any(table.rows_total for table in running.source.status().tables), what="the first rows")
        yield running
    finally:
        running.stop()


def test_payments_go_on_while_postgres_is_down(own_postgres: PostgresServer, kafka: str, prefix: str) -> None:
    output = Output(kafka, f"{prefix}authorizations")
    rejected = Output(kafka, f"{prefix}rejected-transactions")
    till = Till(kafka, f"{prefix}transactions")
    with publishing(own_postgres, kafka, prefix) as source, Service(kafka, prefix) as service:
        till.sell(500)
        wait_until(lambda: len(output.take()) == 500, what="the first half")
        own_postgres.stop()
        source.wait_for(SourceState.WAITING)
        till.sell(500)
        wait_until(lambda: len(output.take()) == 1000, what="the second half, without Postgres")
        assert sorted(output.ids()) == sorted(f"X{number}" for number in range(1, 1001))
        assert all(record["acquirerId"] == f"A{int(record['terminalId'][1:]) % 7}" for record, _ in output.records)
        assert service.ready()

        own_postgres.start()
        with psycopg.connect(own_postgres.url(), autocommit=True) as connection:
            connection.execute("UPDATE terminal_acquirer SET acquirer_id = 'moved' WHERE terminal_id = 'T1'")

        def moved() -> bool:
            till.sell(terminal="T1")
            wait_until(lambda: len(output.take()) == till.count, what="one more")
            return output.records[-1][0]["acquirerId"] == "moved"

        wait_until(moved, what="the change after Postgres came back")

        till.sell(terminal="T-nowhere")
        wait_until(rejected.take, what="the rejection")
        [(transaction, headers)] = rejected.records
        assert (transaction["terminalId"], headers) == ("T-nowhere", {"reason": b"unknown terminal"})
        assert service.stop() == 0

    # A stopped service has committed what it sent: the next one begins behind it.
    before = len(output.take())
    with Service(kafka, prefix) as service:
        till.sell(10)
        wait_until(lambda: len(output.take()) >= before + 10, what="the next service's first")
        assert len(set(output.ids())) == len(output.ids()) == before + 10
        assert service.stop() == 0
    output.close()
    rejected.close()


def test_a_killed_service_loses_nothing(kafka: str, prefix: str, unique: Callable[[str], str]) -> None:
    topics = Topics(kafka, unique)
    directory = topics.create(1, f"{prefix}terminal_acquirer")
    values = [{"id": n, "terminalId": f"T{n}", "acquirerId": "A", "isActive": True} for n in range(1, TERMINALS + 1)]
    topics.produce(directory, *((str(value["id"]), json.dumps(value)) for value in values))
    till, output = Till(kafka, f"{prefix}transactions"), Output(kafka, f"{prefix}authorizations")
    selling = threading.Thread(target=till.sell, args=(20_000,))
    with Service(kafka, prefix):
        selling.start()
        wait_until(lambda: len(output.take()) > 2000, what="some authorizations")  # and killed
    with Service(kafka, prefix) as service:
        selling.join(60)
        wait_until(lambda: len(output.take()) >= 20_000 and len(set(output.ids())) == 20_000, 60, "all of them")
        assert service.stop() == 0
    output.close()


def test_what_is_no_transaction_is_rejected(kafka: str, prefix: str, unique: Callable[[str], str]) -> None:
    topics = Topics(kafka, unique)
    topics.create(1, f"{prefix}terminal_acquirer")
    rejected = Output(kafka, f"{prefix}rejected-transactions")
    with Service(kafka, prefix) as service:
        topics.produce(f"{prefix}transactions", ("k", '"text"'), ("k", '{"terminalId": "T1"}'))
        wait_until(lambda: len(rejected.take()) == 2, what="the rejections")
        assert all(headers["reason"].startswith(b"not a transaction") for _, headers in rejected.records)
        assert service.stop() == 0
    rejected.close()


def test_six_lines_look_a_terminal_up(own_postgres: PostgresServer, kafka: str, unique: Callable[[str], str]) -> None:
    with publishing(own_postgres, kafka, ""):
        done = subprocess.run(
            [sys.executable, EXAMPLES / "lookup.py", kafka, "T3"], capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stdout) == (0, "A3\n"), done.stderr
    Topics(kafka, unique).delete("terminal_acquirer")
