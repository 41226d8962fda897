"""Servers that a test may harm, a steady stream of writes to them, and the check of what a source made of it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg

from compactory_cli.stack.port import free_port
from compactory_connectors.postgres.jdbc_url import Connection
from compactory_connectors.schema import Adoption, adopt, install
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.source.status.status import SourceState
from tests.source.conftest import ARTICLE, Bench, Running, article_environment
from tests.source.workload import TERMINALS, wait_until
from tests.stack.apache_kafka import ApacheKafka
from tests.stack.postgres_copies import new_server
from tests.stack.proxy import Proxy

END_TRANSACTION = 26
"""The request that commits, by its number in Kafka's protocol."""


class Fragile:
    """A Postgres and a Kafka, each with a proxy before it that sources go through."""

    def __init__(self) -> None:
        self.postgres = new_server(settings={"max_prepared_transactions": "10", "log_min_messages": "log"})
        self.postgres_proxy = Proxy(self.postgres.port)
        self.kafka_proxy = Proxy()
        advertised = {"PROXIED": self.kafka_proxy.address}
        self.kafka = ApacheKafka(listeners={"PROXIED": "PLAINTEXT"}, advertised=advertised)
        self.kafka_proxy.target = int(self.kafka.listener("PROXIED").rpartition(":")[2])

    def start(self) -> None:
        self.postgres.prepare()
        self.kafka.start()
        self.postgres.start()

    def resend_rows(self) -> None:
        """Whatever a test left behind: everything runs."""
        for proxy in (self.postgres_proxy, self.kafka_proxy):
            proxy.watch = None
            proxy.thaw()
        if self.kafka.pid is None:
            self.kafka.start()
        if not self.postgres.running:
            self.postgres.start()

    def restart_postgres(self, how: signal.Signals) -> None:
        """SIGINT: fast, SIGQUIT: immediate."""
        assert self.postgres.pid is not None
        os.kill(self.postgres.pid, how)
        wait_until(lambda: not self.postgres.running, what="the server's end")
        self.postgres.start()

    def remove(self) -> None:
        for proxy in (self.postgres_proxy, self.kafka_proxy):
            proxy.close()
        self.kafka.remove()
        self.postgres.remove()


class Writer:
    """Commits one numbered change after the other to ``rows`` rows; goes on when the server is back."""

    def __init__(self, url: str, rows: int = 20) -> None:
        self._url, self._rows = url, rows
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[tuple[float, int, int]] = []
        """When the server's answer was there, row, number."""
        self.error: Exception | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
        assert self.error is None, self.error

    def wait_for(self, more: int, timeout: float = 60.0) -> None:
        before = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) >= before + more or self.error, timeout, f"{more} commits")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._url, autocommit=True, connect_timeout=2) as connection:
                    while not self._stop.wait(0.005):
                        self._write(connection)
            except psycopg.OperationalError:
                self._stop.wait(0.05)
            except Exception as error:  # noqa: BLE001 - shown by writing()
                self.error = error
                return

    def _write(self, connection: psycopg.Connection[Any]) -> None:
        number = next(self._numbers)
        row = number % self._rows + 1
        connection.execute(
            "INSERT INTO terminal_acquirer (id, terminal_id, acquirer_id) VALUES (%s, %s, %s)"
            " ON CONFLICT (id) DO UPDATE SET acquirer_id = excluded.acquirer_id",
            [row, f"T{row}", str(number)],
        )
        self.acknowledged.append((time.time(), row, number))


class Child:
    """``compactory source run`` with the article's connector in a process of its own, as it shows itself over HTTP."""

    def __init__(self, url: str, kafka: str, prefix: str) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/v1/status"
        command = [sys.executable, "-m", "compactory_cli", "source", "run", str(ARTICLE), "--kafka", kafka]
        environment = {**os.environ, **article_environment(url, prefix)}
        self._process = subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}"], env=environment)

    def status(self) -> dict[str, Any]:
        """The connector's part of the answer, nothing before there is one."""
        with suppress(OSError), urlopen(self._url, timeout=5) as answer:
            return dict(json.load(answer)["workers"][0])
        assert self._process.poll() is None, "the source has ended"
        return {}

    def state(self) -> str | None:
        return self.status().get("state")

    def lag(self) -> float:
        return max(float(table["lag_seconds"]) for table in self.status()["tables"])

    def memory(self) -> int:
        """Bytes that are resident now."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(30) == 0


class Trial:
    """A source through the proxies while a writer writes, and whether its topic and its word were right."""

    def __init__(self, fragile: Fragile, database: str, prefix: str, *, adopted: bool = False) -> None:
        self.fragile = fragile
        self.url = fragile.postgres.url(database)
        self.bench = Bench(self.url, fragile.kafka.address, prefix)
        if adopted:
            self.bench.sql.execute("DROP TABLE terminal_acquirer; DROP FUNCTION stamp()")
            self.bench.sql.execute(TERMINALS)
            install(self.bench.sql)
            adopt(self.bench.sql, Adoption(table="terminal_acquirer", key=("terminal_id",)))
        self.bench.sql.close()
        self.writer = Writer(self.url)
        self.running: Running | None = None

    @property
    def source(self) -> Source:
        assert self.running is not None
        return self.running.source

    def start(self, **changes: Any) -> None:
        """Run a source that reaches both servers through their proxies alone."""
        place = dict(self.bench.connector().connection.conninfo) | {"port": str(self.fragile.postgres_proxy.port)}
        changes = {"connection": Connection(place), **changes}
        self.running = Running(Source(self.bench.connector(**changes), self.fragile.kafka_proxy.address))

    @contextmanager
    def process(self) -> Iterator[Child]:
        """A source in a process of its own."""
        child = Child(self.url, self.fragile.kafka.address, self.bench.prefix)
        try:
            yield child
        finally:
            child.stop()

    @contextmanager
    def going(self, **changes: Any) -> Iterator[None]:
        """A source that has begun to follow the writer; at the end both agree."""
        self.start(**changes)
        try:
            with self.writer.writing():
                self.writer.wait_for(20)
                self.catch_up()
                yield
                self.catch_up()
            self.check()
        finally:
            self.stop()

    def stop(self) -> None:
        if self.running is not None and not self.running.ended:
            self.running.stop()

    def catch_up(self, timeout: float = 60.0) -> None:
        """Wait until the source says that what was committed before now is published, and check that it is."""
        now = time.time()
        wait_until(lambda: self.current_at() > now or self.running.ended, timeout, "the source to catch up")
        self.check_word()

    def current_at(self) -> float:
        tables = self.source.status().tables
        return (tables[0].current_at or 0.0) if tables else 0.0

    def published(self) -> dict[int, list[int]]:
        """The numbers published of each row, in order."""
        found: dict[int, list[int]] = {}
        for key, value in self.bench.records():
            found.setdefault(int(key or 0), []).append(int(json.loads(value or b"{}")["acquirerId"]))
        return found

    def check_word(self) -> None:
        """Nothing is announced early: all that was committed before ``current_at`` is in the topic."""
        word = self.current_at()
        wanted = {row: number for at, row, number in list(self.writer.acknowledged) if at < word}
        published = self.published()
        late = {row: number for row, number in wanted.items() if max(published.get(row, [0])) < number}
        assert not late, f"said to be published and not there: {late}"

    def check(self, repeated: int = 0) -> None:
        """The topic is the table, and no change was sent twice but for those that a crash may repeat."""
        self.catch_up()
        with psycopg.connect(self.url) as connection:
            rows = connection.execute("SELECT id, acquirer_id::int FROM terminal_acquirer").fetchall()
        published = self.published()
        assert {row: numbers[-1] for row, numbers in published.items()} == dict(rows)
        twice = sum(len(numbers) - len(set(numbers)) for numbers in published.values())
        assert twice <= repeated, f"{twice} changes were sent again"

    def state(self) -> SourceState:
        return self.source.status().state

    def wait_for(self, state: SourceState, timeout: float = 60.0) -> None:
        wait_until(lambda: self.state() is state or self.running.ended, timeout, f"state {state}")
        assert self.state() is state


def on_request(number: int, action: Callable[[], object]) -> Callable[[bytes], None]:
    """For ``Proxy.watch``: act once when a client sends this request of Kafka's protocol."""
    done = threading.Event()

    def watch(data: bytes) -> None:
        if len(data) > 6 and int.from_bytes(data[4:6]) == number and not done.is_set():
            done.set()
            action()

    return watch


@contextmanager
def terminating(url: str, every: float = 0.05) -> Iterator[None]:
    """End the sources' connections over and over, in the middle of whatever they do."""
    stop = threading.Event()

    def run() -> None:
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'compactory-source'"
        with suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as connection:
            while not stop.wait(every):
                connection.execute(kill)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
