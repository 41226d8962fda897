"""What the demo runs: Postgres with the table, the broker, the source as a process of its own, and a store."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

import psycopg

from compactory import Directory, GlobalStore, View
from compactory.errors import Unreachable
from compactory.kafka import Kafka
from compactory_connectors.database import Adoption, adopt
from compactory_connectors.source.jdbc_url import parse_url
from compactory_connectors.source.server import postgres_errors
from compactory_sql import read

from ..failure import StepFailed
from ..stack.broker import Broker
from ..stack.postgres import PostgresServer
from ..stack.process import Process, free_port, port_in_use
from .home import Home

__all__ = ["ROWS", "TOPIC", "Stage"]

ROWS = 50_000
TOPIC = "terminal_acquirer"
DIRECTORY = Directory(TOPIC, key="terminalId", active="isActive")
_KAFKA_PORT = 39092
_PATIENCE = 30.0

_TOML = """\
# The demo's servers and its directory, for: compactory --config {path} …
[kafka]
bootstrap.servers = "{kafka}"

[postgres]
url = "{postgres}"

[directories.terminal_acquirer]
key = "terminalId"
active = "isActive"
indexes = [{{fields = ["acquirerId"]}}]
connector = "terminal_acquirer.json"
"""

_PROPERTIES = """\
# Answers the placeholders of terminal_acquirer.json: --provider tpp={path}
reference-data.db.url=jdbc:postgresql://127.0.0.1:{port}/postgres
reference-data.db.user=postgres
reference-data.db.password=
kafka.topic.prefix=
"""


class Stage:
    """The servers and the store. Owned by the thread that calls it: children die with the thread that started them."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.postgres = PostgresServer(home.scratch / "postgres", settings={"fsync": "off"})
        port = free_port() if port_in_use(_KAFKA_PORT) else _KAFKA_PORT
        self.broker = Broker(home.scratch / "broker", port=port)
        self.store: GlobalStore | None = None
        self._source: Process | None = None

    @property
    def view(self) -> View[dict[str, Any]]:
        """The directory in the store."""
        assert self.store is not None
        return self.store[TOPIC]

    @property
    def pids(self) -> dict[str, int]:
        """Processes that run, by name."""
        pids = {"postgres": self.postgres.pid, "kafka": self.broker.pid}
        pids["source"] = self._source.pid if self._source else None
        return {"demo": os.getpid()} | {name: pid for name, pid in pids.items() if pid is not None}

    def describe(self) -> dict[str, Any]:
        """What demo.json says."""
        return {
            "postgres": self.postgres.url(),
            "kafka": self.broker.address,
            "topic": TOPIC,
            "pids": self.pids,
        }

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection in autocommit. Raises Unreachable when Postgres is away."""
        url = self.postgres.url()
        with postgres_errors(parse_url(url)), psycopg.connect(url, autocommit=True) as connection:
            yield connection

    def write_files(self) -> None:
        """Connector, placeholders and compactory.toml, for the source and for the user."""
        folder, kafka, postgres = self.home.folder, self.broker.address, self.postgres.url()
        connector = resources.files("compactory_cli.demo") / "terminal_acquirer.json"
        self.home.write("terminal_acquirer.json", connector.read_text(encoding="utf-8"))
        self.home.write("tpp.properties", _PROPERTIES.format(path=folder / "tpp.properties", port=self.postgres.port))
        self.home.write("demo.toml", _TOML.format(path=folder / "demo.toml", kafka=kafka, postgres=postgres))

    def create_table(self) -> None:
        """The shipped table, adopted while it is still empty."""
        with self.connect() as connection:
            connection.execute(read("templates/terminal_acquirer.sql").encode())
            adopt(connection, Adoption(table=TOPIC, key=("terminal_id",), active="is_active"))

    def fill_table(self) -> None:
        """T1 … T50000 and their acquirers."""
        with self.connect() as connection:
            connection.execute(
                "INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
                " SELECT 'T' || n, 'A' || mod(n, 50) FROM generate_series(1, %s) AS n",
                [ROWS],
            )

    def start_source(self) -> None:
        """``compactory source run`` on the connector."""
        folder = self.home.folder.resolve()
        ours = {name: "" for name in os.environ if name.startswith("COMPACTORY_")}  # empty counts as not set
        command = [sys.executable, "-m", "compactory_cli", "source", "run", str(folder / "terminal_acquirer.json")]
        command += ["--provider", f"tpp={folder / 'tpp.properties'}", "--config", str(folder / "demo.toml")]
        self._source = Process("source", command, log=self.home.scratch / "source.log", environment=ours)
        self._source.start()

    def wait_for_topic(self) -> None:
        """Until the source has made its topic."""
        kafka = Kafka(self.broker.address)
        self.wait(lambda: TOPIC in kafka.topics([TOPIC]), "the source has not made its topic")

    def open_store(self) -> None:
        """Follow the topic, until every row of the table is there."""
        self.store = GlobalStore(self.broker.address, [DIRECTORY])
        self.store.start()
        self.wait(lambda: len(self.view) == ROWS, f"the store does not hold {ROWS} entries")

    def time_a_start(self) -> float:
        """Seconds that another store takes to be ready."""
        began = time.perf_counter()
        with GlobalStore(self.broker.address, [DIRECTORY]) as store:
            took = time.perf_counter() - began
            if len(store[TOPIC]) != ROWS:
                raise StepFailed(f"a store that has just started holds {len(store[TOPIC])} of {ROWS} entries")
        return took

    def wait(self, reached: Callable[[], bool], otherwise: str, pause: float = 0.02) -> None:
        """Wait for a condition, looking every ``pause`` seconds.

        Raises StepFailed when it does not come, Unreachable when the source has ended.
        """
        deadline = time.monotonic() + _PATIENCE
        while not reached():
            if self._source is not None and not self._source.running:
                raise Unreachable("source", f"the source has ended:\n{self._source.tail()}")
            if time.monotonic() > deadline:
                raise StepFailed(f"{otherwise} after {_PATIENCE:.0f} s")
            time.sleep(pause)

    def close(self) -> None:
        """End everything, in the order in which nobody waits for anybody."""
        if self.store is not None:
            self.store.close()
        if self._source is not None:
            self._source.stop()
        self.postgres.stop()
        self.broker.stop()
