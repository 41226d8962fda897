"""The parts of the demo: a table, processes for source and HTTP, and a store in this process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

import psycopg

from compactory import Directory, GlobalStore, View
from compactory.errors import Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.schema import Adoption, adopt
from compactory_connectors.source.verify.outcome import Outcome
from compactory_connectors.source.verify.verifier import Options, verify
from compactory_sql import read

from ..context.failure import StepFailed
from ..context.loading import load_connectors
from ..stack.port import free_port
from ..stack.process import Process
from .client import Client
from .home import Home
from .servers import Servers

__all__ = ["ROWS", "TOPIC", "Stage"]

ROWS = 50_000
TOPIC = "terminal_acquirer"
DIRECTORY = Directory(TOPIC, key="terminalId", active="isActive")
_HTTP_PORT = 8080
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
    """All running parts. Owned by one thread: processes end with the thread that started them."""

    def __init__(self, home: Home, servers: Servers) -> None:
        self.home = home
        self.postgres = servers.postgres
        self.broker = servers.broker
        self.kafka = Kafka(self.broker.address)
        self.store: GlobalStore | None = None
        self.client = Client(free_port(_HTTP_PORT), TOPIC)
        self._source: Process | None = None
        self._http: Process | None = None

    @property
    def view(self) -> View[dict[str, Any]]:
        """Return the directory's view in the store."""
        assert self.store is not None
        return self.store[TOPIC]

    @property
    def pids(self) -> dict[str, int]:
        """Return the ids of running processes by name."""
        pids = {"postgres": self.postgres.pid, "kafka": self.broker.pid}
        pids |= {child.name: child.pid for child in self._children}
        return {"demo": os.getpid()} | {name: pid for name, pid in pids.items() if pid is not None}

    @property
    def stopped(self) -> list[str]:
        """Return the names of the servers that do not answer."""
        states = {"postgres": not self.postgres.running, "kafka": self.broker.is_paused}
        return [name for name, is_stopped in states.items() if is_stopped]

    def describe(self) -> dict[str, Any]:
        """Return the contents of demo.json."""
        return {
            "postgres": self.postgres.url(),
            "kafka": self.broker.address,
            "http": self.client.url,
            "topic": TOPIC,
            "pids": self.pids,
            "stopped": self.stopped,
        }

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection in autocommit. Raises Unreachable if Postgres can't be reached."""
        try:
            with psycopg.connect(self.postgres.url(), autocommit=True) as connection:
                yield connection
        except psycopg.OperationalError as error:
            raise Unreachable("Postgres", f"{self.postgres.url()} was not reached: {error}") from error

    def write_files(self) -> None:
        """Write connector, placeholders and compactory.toml for the source and the user."""
        folder, kafka, postgres = self.home.folder, self.broker.address, self.postgres.url()
        connector = resources.files("compactory_cli.demo") / "terminal_acquirer.json"
        self.home.write("terminal_acquirer.json", connector.read_text(encoding="utf-8"))
        self.home.write("tpp.properties", _PROPERTIES.format(path=folder / "tpp.properties", port=self.postgres.port))
        self.home.write("demo.toml", _TOML.format(path=folder / "demo.toml", kafka=kafka, postgres=postgres))

    def create_table(self) -> None:
        """Create the shipped table and adopt it."""
        with self.connect() as connection:
            connection.execute(read("templates/terminal_acquirer.sql").encode())
            adopt(connection, Adoption(table=TOPIC, key=("terminal_id",), active="is_active"))

    def fill_table(self) -> None:
        """Insert the terminals T1 … T50000 and their acquirers."""
        with self.connect() as connection:
            connection.execute(
                "INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
                " SELECT 'T' || n, 'A' || mod(n, 50) FROM generate_series(1, %s) AS n",
                [ROWS],
            )

    def create_topic(self) -> None:
        """Create the source's topic, so that the HTTP server can start before the source."""
        self.kafka.create_topic(TOPIC, partitions=1, config={"cleanup.policy": "compact"})

    def start_http(self) -> None:
        """Start ``compactory serve`` on the topic."""
        self._http = self._command("http", "serve", TOPIC, "--listen", self.client.url.removeprefix("http://"))

    def start_source(self) -> None:
        """Start ``compactory source run`` on the connector."""
        folder = self.home.folder.resolve()
        provider = f"tpp={folder / 'tpp.properties'}"
        self._source = self._command(
            "source", "source", "run", f"{folder / 'terminal_acquirer.json'}", "--provider", provider
        )

    def wait_for_http(self) -> None:
        """Wait until the HTTP server has every row of the table."""
        self._await_listener()
        self.wait(self._http_holds_all, f"the HTTP server does not hold {ROWS} entries", pause=0.05)

    def open_store(self) -> None:
        """Start the store of this process, as a service does at its start."""
        self.store = GlobalStore(self.broker.address, [DIRECTORY])
        self.store.start()
        if len(self.view) != ROWS:
            raise StepFailed(f"a store that has just started holds {len(self.view)} of {ROWS} entries")

    def compare(self) -> Outcome:
        """Compare the topic with the table."""
        folder = self.home.folder.resolve()
        [connector] = load_connectors([folder / "terminal_acquirer.json"], [f"tpp={folder / 'tpp.properties'}"])
        [outcome] = verify(connector, self.kafka, Options())
        return outcome

    def poison(self) -> None:
        """Write a record that is not JSON into the topic."""
        producer = self.kafka.producer({}, {}, lambda _error: None)
        producer.produce(TOPIC, b"{", b"poison")
        if producer.flush(_PATIENCE):
            raise Unreachable("Kafka", "the broker did not take the record")

    def wait(self, reached: Callable[[], bool], otherwise: str, pause: float = 0.02) -> None:
        """Wait until ``reached()`` returns True, checking every ``pause`` seconds.

        Raises StepFailed after 30 seconds, Unreachable if the source or the HTTP server has ended.
        """
        deadline = time.monotonic() + _PATIENCE
        while not reached():
            for child in self._children:
                if not child.running:
                    raise Unreachable(child.name, f"{child.name} has ended:\n{child.tail()}")
            if time.monotonic() > deadline:
                raise StepFailed(f"{otherwise} after {_PATIENCE:.0f} s")
            time.sleep(pause)

    def close(self) -> None:
        """End all parts, in an order in which no part waits for another."""
        self.broker.resume()
        self.client.close()
        for child in self._children:
            child.signal(signal.SIGTERM)  # side by side
        if self.store is not None:
            self.store.close()
        for child in self._children:
            child.stop()

    @property
    def _children(self) -> list[Process]:
        return [child for child in (self._source, self._http) if child is not None]

    def _command(self, name: str, *arguments: str) -> Process:
        """Start a command of ``compactory`` as a process with the demo's configuration alone."""
        ours = {name: "" for name in os.environ if name.startswith("COMPACTORY_")}  # empty counts as not set
        config = str(self.home.folder / "demo.toml")
        command = [sys.executable, "-m", "compactory_cli", *arguments, "--config", config]
        child = Process(name, command, log=self.home.scratch / f"{name}.log", environment=ours)
        child.start()
        return child

    def _await_listener(self) -> None:
        """Wait until the HTTP server listens; on another port if a process has taken the first one."""
        try:
            self._listening()
        except Unreachable:
            if self._http is not None and self._http.running:
                raise
            self.client = Client(free_port(), TOPIC)
            self.start_http()
            self._listening()

    def _listening(self) -> None:
        assert self._http is not None
        http, port = self._http, self.client.port
        http.wait_until(lambda: http.listens_on(port), _PATIENCE)

    def _http_holds_all(self) -> bool:
        [directory] = self.client.get("/v1/directories").body["directories"]
        return bool(directory["entries"] == ROWS)
