"""The demo's story: fill a table, publish it, serve it, change a row; with ``--check`` all that the demo promises."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from threading import Event
from typing import Any

import psycopg

from compactory import Directory, GlobalStore
from compactory.errors import CompactoryError, EntryMissing, Unreachable
from compactory.kafka.client import Kafka
from compactory_client import Client
from compactory_connectors.schema import Adoption, adopt
from compactory_connectors.source.verify.verifier import Options, verify
from compactory_sql import read

from ..context.failure import StepFailed
from ..context.loading import load_connectors
from ..context.remote import RemoteServer
from ..stack.broker import Broker
from ..stack.port import free_port
from ..stack.postgres import PostgresServer, embedded_binaries
from ..stack.process import Process
from ..views.terminal import number, output, print_json, say, seconds
from .home import Home

__all__ = ["Demo", "Ended"]

_ROWS = 50_000
_TOPIC = "terminal_acquirer"
_HTTP_PORT = 8080
_CONSOLE_PORT = 8081
_STEP_TIMEOUT = 30.0
_CHANGES = 20
_LOOKUP_SECONDS = 0.5

_TOML = """\
# The demo's servers and its directory, for: compactory --config {folder}/demo.toml …
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
# Answers the placeholders of terminal_acquirer.json: --provider tpp={folder}/tpp.properties
reference-data.db.url=jdbc:postgresql://127.0.0.1:{port}/postgres
reference-data.db.user=postgres
reference-data.db.password=
kafka.topic.prefix=
"""

_INVITATION = """
  [bold]postgres [/] {postgres}, table {topic}
  [bold]kafka    [/] {kafka}, topic {topic}; memory only
  [bold]source   [/] compactory source run {topic}.json: from the table to the topic
  [bold]http     [/] {http}: compactory serve, the topic in memory
  [bold]console  [/] {console}: look at all of it in a browser

Up in {startup}; {folder}/demo.json says what runs where, {scratch}/*.log what they log.
Try, in another terminal in this folder:

  [cyan]curl -i {http}/v1/directories/{topic}/entries/T42[/]
  [cyan]{psql} {postgres} -c "UPDATE {topic} SET acquirer_id = 'A7' WHERE terminal_id = 'T42'"[/]

  [cyan]{program} demo stop postgres[/]    # look again: lookups go on
  [cyan]{program} demo start postgres[/]   # change again: the source comes back by itself
  [cyan]{program} demo stop kafka[/]       # it hangs, which keeps its topics; lookups go on
  [cyan]{program} demo start kafka[/]

  [cyan]curl {http}/v1/directories[/]
  [cyan]curl {http}/v1/errors[/]
  [cyan]{program} --config {folder}/demo.toml get {topic} T42[/]
  [cyan]{program} --config {folder}/demo.toml verify {topic} --provider tpp={folder}/tpp.properties[/]

Ctrl-C ends it all and leaves nothing behind."""


class Ended(Exception):
    """A signal asks the demo to end."""


@dataclass
class _Step:
    """A running step; its code sets ``result``, and ``seconds`` if it measures them itself."""

    result: str = ""
    seconds: float | None = None


class Demo:
    """The running parts. Owned by one thread: processes end with the thread that started them."""

    def __init__(self, home: Home, postgres: PostgresServer, broker: Broker, ending: Event, *, as_json: bool) -> None:
        self._home = home
        self._postgres = postgres
        self._broker = broker
        self._ending = ending
        self._as_json = as_json
        self._url = f"http://127.0.0.1:{free_port(_HTTP_PORT)}"
        self._source_url = f"http://127.0.0.1:{free_port()}"
        self._console_url = f"http://127.0.0.1:{free_port(_CONSOLE_PORT)}"
        self._server = RemoteServer(self._url)
        self._client = Client(self._url)
        self._entries = self._client.directory(_TOPIC)
        self._children: dict[str, Process] = {}
        self._store: GlobalStore | None = None

    def show(self, began: float) -> None:
        """Start all parts, show a change, and stay. Raises Ended after a signal, StepFailed, Unreachable."""
        restart = Event()
        signal.signal(signal.SIGUSR1, lambda _sign, _frame: restart.set())  # `demo start postgres`
        self._set_up()
        servers = ("--server", self._url, "--server", self._source_url)
        _, *provider = self._connector()
        self._start("console", "console", "--listen", self._console_url.removeprefix("http://"), *servers, *provider)
        self._home.announce(self._state())
        startup = time.perf_counter() - began
        self._tell({"ready": self._state(), "seconds": round(startup, 4)}, "")
        with self._step("change", "UPDATE in Postgres") as step:
            step.seconds = self._change("T4242", "B42")
            step.result = "from COMMIT of an UPDATE to the answer of an HTTP lookup"
        if not self._as_json:
            say(self._invitation(startup))
        self._stay(restart)

    def check(self) -> None:
        """Run every step. Raises StepFailed if a step fails, Ended after a signal."""
        try:
            self._set_up()
            self._check_change()
            self._check_outage()
            self._check_delete()
            self._check_topic()
            self._check_bad_record()
        except CompactoryError as error:
            raise StepFailed(str(error)) from error

    def close(self) -> None:
        """End source, server and store, in an order in which no part waits for another."""
        self._client.close()
        self._broker.resume()
        for child in self._children.values():
            child.signal(signal.SIGTERM)  # side by side
        if self._store is not None:
            self._store.close()
        for child in self._children.values():
            child.stop()

    def _set_up(self) -> None:
        if not self._as_json:
            say("[bold]compactory demo[/]: a committed row becomes a lookup, and stays one while Postgres is down\n")
        kafka = self._broker.address
        with self._step("kafka", "starting the broker") as step:
            self._broker.start()
            self._write_files()
            Kafka(kafka).create_topic(_TOPIC, partitions=1, config={"cleanup.policy": "compact"})
            self._start("http", "serve", _TOPIC, "--listen", self._url.removeprefix("http://"))
            step.result = f"broker on {kafka}, memory only; topic {_TOPIC}"
        with self._step("postgres", "starting Postgres") as step:
            self._postgres.start()
            step.result = self._postgres.url()
        with self._step("table", "filling the table") as step:
            with self._connect() as connection:
                connection.execute(read("templates/terminal_acquirer.sql").encode())
                adopt(connection, Adoption(table=_TOPIC, key=("terminal_id",), active="is_active"))
                listen = self._source_url.removeprefix("http://")
                self._start("source", "source", "run", *self._connector(), "--listen", listen)
                connection.execute(
                    "INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
                    " SELECT 'T' || n, 'A' || mod(n, 50) FROM generate_series(1, %s) AS n",
                    [_ROWS],
                )
            step.result = f"public.{_TOPIC}: {_ROWS:,} rows, adopted"
        with self._step("http", "loading the topic") as step:
            self._wait(self._server_has_all, f"the HTTP server does not hold {_ROWS} entries", pause=0.05)
            step.result = f"{self._url}: the source has sent every row, the server holds it"
        with self._step("store", "loading a store") as step:
            self._store = GlobalStore(kafka, [Directory(_TOPIC, key="terminalId", active="isActive")])
            self._store.start()
            if (entries := len(self._store[_TOPIC])) != _ROWS:
                raise StepFailed(f"a store that has just started holds {entries} of {_ROWS} entries")
            step.result = f"in this process: the start of a store with {_ROWS:,} entries"

    def _stay(self, restart: Event) -> None:
        """Keep demo.json up to date and start Postgres when asked, until a signal comes."""
        state = self._state()
        while not self._ending.wait(0.1):
            if restart.is_set() and not self._postgres.running:
                self._postgres.start()
            restart.clear()
            previous, state = state, self._state()
            if state == previous:
                continue
            self._home.announce(state)
            for name in sorted(previous["pids"].keys() - state["pids"].keys()):
                text = f" [yellow]![/] {name} (pid {previous['pids'][name]}) has ended; the others go on"
                self._tell({"ended": name, "pid": previous["pids"][name]}, text)

    def _check_change(self) -> None:
        with self._step("change", "UPDATE in Postgres") as step:
            times = [self._change(f"T{1 + 97 * count}", f"B{count}") for count in range(_CHANGES)]
            step.seconds = statistics.median(times)
            step.result = f"from COMMIT to HTTP lookup: median of {_CHANGES} updates, slowest {seconds(max(times))}"

    def _check_outage(self) -> None:
        assert self._store is not None
        view = self._store[_TOPIC]
        with self._step("stop", "stopping Postgres") as step:
            self._postgres.stop()
            step.result = "Postgres is down"
        with self._step("lookups", "looking up without Postgres") as step:
            local = _lookups(lambda key: view[key])
            remote = _lookups(lambda key: self._entries.get(key).value)
            step.result = f"go on: {number(remote)} a second by the HTTP client, {number(local)} in process"
        with self._step("start", "starting Postgres") as step:
            self._postgres.start()
            step.result = "Postgres is back"
        with self._step("catch up", "UPDATE in Postgres") as step:
            self._change("T4242", "B42")
            step.result = "a new change arrived: the source came back by itself"

    def _check_delete(self) -> None:
        assert self._store is not None
        view = self._store[_TOPIC]
        with self._step("delete", "UPDATE … SET is_active = false") as step:
            with self._connect() as connection:
                connection.execute("UPDATE terminal_acquirer SET is_active = false WHERE terminal_id = 'T77'")
            self._wait(lambda: self._acquirer("T77") is None, "a deleted row is still served")
            self._wait(lambda: "T77" not in view, "a deleted row is still in the store")
            step.result = f"soft delete: /v1/directories/{_TOPIC}/entries/T77 is 404"

    def _check_topic(self) -> None:
        with self._step("verify", "comparing topic and table") as step:
            path, _, provider = self._connector()
            [connector] = load_connectors([Path(path)], [provider])
            [outcome] = verify(connector, Kafka(self._broker.address), Options())
            if not outcome.equal:
                raise StepFailed(f"topic and table differ: {dict(outcome.findings)}")
            rows = number(outcome.expected)
            step.result = f"all {rows} active rows are in the topic as the table has them, and nothing else"

    def _check_bad_record(self) -> None:
        with self._step("poison", "writing a record that is no JSON") as step:
            producer = Kafka(self._broker.address).producer({}, {}, lambda _error: None)
            producer.produce(_TOPIC, b"{", b"poison")
            if producer.flush(_STEP_TIMEOUT):
                raise Unreachable("Kafka", "the broker did not take the record")
            self._wait(lambda: bool(self._server.errors()[1]), "/v1/errors does not list the bad record")
            self._wait(lambda: self._acquirer("T1") is not None, "T1 is not served")
            [bad] = self._server.errors()[0]
            place = f"{bad['topic']}:{bad['partition']}:{bad['offset']} ({bad['error']})"
            step.result = f"/v1/errors lists {place}; the rest is served"

    def _change(self, terminal: str, acquirer: str) -> float:
        """Change a row, wait until server and store have it, return the seconds from commit to HTTP answer."""
        assert self._store is not None
        view, otherwise = self._store[_TOPIC], f"the change of {terminal} did not arrive"
        with self._connect() as connection:
            connection.execute(
                "UPDATE terminal_acquirer SET acquirer_id = %s WHERE terminal_id = %s AND is_active",
                [acquirer, terminal],
            )
            committed = time.perf_counter()
            self._wait(lambda: self._acquirer(terminal) == acquirer, otherwise)
            elapsed = time.perf_counter() - committed
        self._wait(lambda: view[terminal]["acquirerId"] == acquirer, otherwise)
        return elapsed

    def _acquirer(self, terminal: str) -> str | None:
        """Return the acquirer that the server answers with; None without an entry."""
        try:
            return str(self._entries.get(terminal).value["acquirerId"])
        except EntryMissing:
            return None

    def _server_has_all(self) -> bool:
        with suppress(Unreachable):  # not started yet
            return bool(self._server.directories([_TOPIC])[0]["entries"] == _ROWS)
        return False

    def _wait(self, reached: Callable[[], bool], otherwise: str, pause: float = 0.0005) -> None:
        """Wait until ``reached()`` returns True, checking every ``pause`` seconds.

        Raises StepFailed after 30 seconds, Unreachable if source or server has ended, Ended after a signal.
        """
        deadline = time.monotonic() + _STEP_TIMEOUT
        while not reached():
            if self._ending.is_set():
                raise Ended
            for child in self._children.values():
                if not child.running:
                    raise Unreachable(child.name, f"{child.name} has ended:\n{child.tail()}")
            if time.monotonic() > deadline:
                raise StepFailed(f"{otherwise} after {_STEP_TIMEOUT:.0f} s")
            time.sleep(pause)

    @contextmanager
    def _step(self, name: str, doing: str) -> Iterator[_Step]:
        """Show ``doing`` while the block runs, then result and duration, also if it fails. Raises Ended."""
        if self._ending.is_set():
            raise Ended
        step, began, mark = _Step(), time.perf_counter(), "[red]✗[/]"
        try:
            with nullcontext() if self._as_json else output().status(f"{doing} …"):
                yield step
            mark = "[green]✓[/]"
        finally:
            elapsed = step.seconds if step.seconds is not None else time.perf_counter() - began
            document = {"step": name, "ok": "green" in mark, "seconds": round(elapsed, 4), "result": step.result}
            if not self._ending.is_set():
                self._tell(document, f" {mark} [bold]{name:<9}[/] {seconds(elapsed):>8}   {step.result}")

    def _tell(self, document: Mapping[str, Any], text: str) -> None:
        """Print the document for programs, or the text (if any) for people."""
        if self._as_json:
            print_json(document)
        elif text:
            say(text)

    def _state(self) -> dict[str, Any]:
        """Return the contents of demo.json."""
        pids = {"demo": os.getpid(), "postgres": self._postgres.pid, "kafka": self._broker.pid}
        pids |= {name: child.pid for name, child in self._children.items()}
        stopped = {"postgres": not self._postgres.running, "kafka": self._broker.is_paused}
        return {
            "postgres": self._postgres.url(),
            "kafka": self._broker.address,
            "http": self._url,
            "console": self._console_url,
            "topic": _TOPIC,
            "pids": {name: pid for name, pid in pids.items() if pid is not None},
            "stopped": [name for name, is_stopped in stopped.items() if is_stopped],
        }

    def _write_files(self) -> None:
        """Write connector, placeholders and compactory.toml for the source and the user."""
        folder = self._home.folder
        connector = resources.files("compactory_cli.demo") / "terminal_acquirer.json"
        texts = {
            "terminal_acquirer.json": connector.read_text(encoding="utf-8"),
            "tpp.properties": _PROPERTIES.format(folder=folder, port=self._postgres.port),
            "demo.toml": _TOML.format(folder=folder, kafka=self._broker.address, postgres=self._postgres.url()),
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")

    def _connector(self) -> tuple[str, str, str]:
        """Return the connector's file and its --provider."""
        folder = self._home.folder.resolve()
        return f"{folder}/terminal_acquirer.json", "--provider", f"tpp={folder}/tpp.properties"

    @contextmanager
    def _connect(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection in autocommit. Raises Unreachable if Postgres can't be reached."""
        try:
            with psycopg.connect(self._postgres.url(), autocommit=True) as connection:
                yield connection
        except psycopg.OperationalError as error:
            raise Unreachable("Postgres", f"{self._postgres.url()} was not reached: {error}") from error

    def _start(self, name: str, *arguments: str) -> None:
        """Start a command of ``compactory`` as a process with the demo's configuration alone."""
        ours = {name: "" for name in os.environ if name.startswith("COMPACTORY_")}  # empty counts as not set
        command = [sys.executable, "-m", "compactory_cli", *arguments, "--config", str(self._home.folder / "demo.toml")]
        self._children[name] = Process(name, command, log=self._home.scratch / f"{name}.log", environment=ours)
        self._children[name].start()

    def _invitation(self, startup: float) -> str:
        psql = embedded_binaries() / "psql"
        return _INVITATION.format(
            postgres=self._postgres.url(),
            kafka=self._broker.address,
            http=self._url,
            console=self._console_url,
            topic=_TOPIC,
            startup=seconds(startup),
            folder=self._home.folder,
            scratch=self._home.scratch,
            psql="psql" if shutil.which("psql") else psql,
            program="compactory" if shutil.which("compactory") else Path(sys.executable).with_name("compactory"),
        )


def _lookups(look: Callable[[str], Mapping[str, Any]]) -> int:
    """Return lookups per second. Raises StepFailed for a wrong answer."""
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < _LOOKUP_SECONDS:
        key = f"T{1 + count % 1000}"
        if look(key)["terminalId"] != key:
            raise StepFailed(f"the lookup of {key} in {_TOPIC} answered with another terminal")
        count += 1
    return round(count / elapsed)
