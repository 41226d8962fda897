"""The demo's story: fill a table, publish it, serve it, change a row; with ``--check`` all that the demo promises."""

from __future__ import annotations

import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

from compactory import Directory, GlobalStore
from compactory.errors import CompactoryError, EntryMissing, Unreachable
from compactory.kafka.client import Kafka
from compactory_client import Client
from compactory_connectors.schema import Adoption, adopt
from compactory_sql import read

from ..context.failure import StepFailed
from ..context.loading import load_connectors
from ..context.remote import RemoteServer
from ..stack.kafka import KafkaServer
from ..stack.postgres import embedded_binaries
from ..views.terminal import number, seconds
from .stage import STEP_TIMEOUT, TOPIC, Stage
from .tour import start_tour, tour

__all__ = ["Demo"]

_ROWS = 50_000
_CHANGES = 20
_LOOKUP_SECONDS = 0.5

_UP = """
Up in {startup}: the directory is served. Now a payment goes through the workers.
"""

_INVITATION = """
  [bold]postgres [/] {postgres}, table {topic}
  [bold]kafka    [/] {kafka}, topic {topic}
  [bold]source   [/] compactory source run {topic}.json: from the table to the topic
  [bold]http     [/] {http}: compactory serve, the topic in memory
  [bold]workers  [/] outbox, jobs, processor and sink, in one process
  [bold]console  [/] {console}: look at all of it in a browser

{folder}/demo.json says what runs where, {scratch}/*.log what they log.
Try, in another terminal in this folder:

  [cyan]curl -i {http}/v1/directories/{topic}/entries/T42[/]
  [cyan]{psql} {postgres} -c "UPDATE {topic} SET acquirer_id = 'A7' WHERE terminal_id = 'T42'"[/]
  [cyan]{psql} {postgres} -c "INSERT INTO payments (terminal_id, amount) VALUES ('T42', 5)" -c "TABLE ledger"[/]

  [cyan]{program} demo stop postgres[/]    # look again: lookups go on
  [cyan]{program} demo start postgres[/]   # change again: the source comes back by itself
  [cyan]{program} demo stop kafka[/]       # it hangs, which keeps its topics; lookups go on
  [cyan]{program} demo start kafka[/]

  [cyan]curl {http}/v1/directories[/]
  [cyan]curl {http}/v1/errors[/]
  [cyan]{program} --config {folder}/demo.toml get {topic} T42[/]
  [cyan]{program} --config {folder}/demo.toml verify {topic} --provider tpp={folder}/tpp.properties[/]
  [cyan]{program} --config {folder}/demo.toml jobs list[/]

Ctrl-C ends it all and leaves nothing behind."""


class Demo:
    """The story of one demo on a stage. Owned by the thread that has started the servers."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        url = stage.urls["http"]
        self._server, self._client = RemoteServer(url), Client(url)
        self._entries = self._client.directory(TOPIC)
        self._store: GlobalStore | None = None

    def show(self, began: float) -> None:
        """Tell the story and stay. Raises Ended after a signal, StepFailed, Unreachable."""
        stage = self._stage
        restart = Event()
        signal.signal(signal.SIGUSR1, lambda _sign, _frame: restart.set())  # `demo start postgres`
        self._set_up()
        with stage.step("change", "UPDATE in Postgres") as step:
            step.seconds = self._change("T4242", "B42")
            step.result = "from COMMIT of an UPDATE to the answer of an HTTP lookup"
        startup = time.perf_counter() - began
        stage.tell({"up": stage.urls["http"], "seconds": round(startup, 4)}, _UP.format(startup=seconds(startup)))
        start_tour(stage)
        _, *provider = stage.connector()
        stage.run_command("console", "console", "--listen", stage.urls["console"].removeprefix("http://"), *provider)
        tour(stage)
        stage.wait(lambda: stage.is_listening("console"), "the console does not listen", pause=0.05)
        stage.home.announce(stage.state())
        stage.tell({"ready": stage.state()}, self._invitation())
        stage.stay(restart)

    def check(self) -> None:
        """Run every step. Raises StepFailed if a step fails, Ended after a signal."""
        try:
            self._set_up()
            self._check_change()
            self._check_outage()
            self._check_delete()
            self._check_topic()
            self._check_bad_record()
            start_tour(self._stage)
            tour(self._stage)
        except CompactoryError as error:
            raise StepFailed(str(error)) from error

    def close(self) -> None:
        """Close client and store."""
        self._client.close()
        if self._store is not None:
            self._store.close()

    def _set_up(self) -> None:
        stage = self._stage
        stage.tell({}, "[bold]compactory demo[/]: a committed row becomes a lookup, and stays one without Postgres\n")
        stage.write_files()
        with stage.step("postgres", "starting Postgres") as step:
            stage.postgres.start()
            stage.run_command("http", "serve", TOPIC, "--listen", stage.urls["http"].removeprefix("http://"))
            step.result = stage.postgres.url()
        with stage.step("table", "filling the table") as step:
            with stage.connect() as connection:
                connection.execute(read("templates/terminal_acquirer.sql").encode())
                adopt(connection, Adoption(table=TOPIC, key=("terminal_id",), active="is_active"))
                listen = stage.urls["source"].removeprefix("http://")
                stage.run_command("source", "source", "run", *stage.connector(), "--listen", listen)
                connection.execute(
                    "INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
                    " SELECT 'T' || n, 'A' || mod(n, 50) FROM generate_series(1, %s) AS n",
                    [_ROWS],
                )
            step.result = f"public.{TOPIC}: {_ROWS:,} rows, adopted"
        with stage.step("kafka", "starting the broker") as step:
            stage.broker.start()
            Kafka(stage.broker.address).create_topic(TOPIC, partitions=1, config={"cleanup.policy": "compact"})
            if isinstance(stage.broker, KafkaServer):
                stage.broker.create_coordinator_topics()
            step.result = f"{stage.broker.title} on {stage.broker.address}; topic {TOPIC}"
        with stage.step("http", "loading the topic") as step:
            stage.wait(self._server_has_all, f"the HTTP server does not hold {_ROWS} entries", pause=0.05)
            step.result = f"{stage.urls['http']}: the source has sent every row, the server holds it"
        with stage.step("store", "loading a store") as step:
            self._store = GlobalStore(stage.broker.address, [Directory(TOPIC, key="terminalId", active="isActive")])
            self._store.start()
            if (entries := len(self._store[TOPIC])) != _ROWS:
                raise StepFailed(f"a store that has just started holds {entries} of {_ROWS} entries")
            step.result = f"in this process: the start of a store with {_ROWS:,} entries"

    def _check_change(self) -> None:
        with self._stage.step("change", "UPDATE in Postgres") as step:
            times = [self._change(f"T{1 + 97 * count}", f"B{count}") for count in range(_CHANGES)]
            step.seconds = statistics.median(times)
            step.result = f"from COMMIT to HTTP lookup: median of {_CHANGES} updates, slowest {seconds(max(times))}"

    def _check_outage(self) -> None:
        assert self._store is not None
        view, stage = self._store[TOPIC], self._stage
        with stage.step("stop", "stopping Postgres") as step:
            stage.postgres.stop()
            step.result = "Postgres is down"
        with stage.step("lookups", "looking up without Postgres") as step:
            local = _lookups(lambda key: view[key])
            remote = _lookups(lambda key: self._entries.get(key).value)
            step.result = f"go on: {number(remote)} a second by the HTTP client, {number(local)} in process"
        with stage.step("start", "starting Postgres") as step:
            stage.postgres.start()
            step.result = "Postgres is back"
        with stage.step("catch up", "UPDATE in Postgres") as step:
            self._change("T4242", "B42")
            step.result = "a new change arrived: the source came back by itself"

    def _check_delete(self) -> None:
        assert self._store is not None
        view, stage = self._store[TOPIC], self._stage
        with stage.step("delete", "UPDATE … SET is_active = false") as step:
            with stage.connect() as connection:
                connection.execute("UPDATE terminal_acquirer SET is_active = false WHERE terminal_id = 'T77'")
            stage.wait(lambda: self._acquirer("T77") is None, "a deleted row is still served")
            stage.wait(lambda: "T77" not in view, "a deleted row is still in the store")
            step.result = f"soft delete: /v1/directories/{TOPIC}/entries/T77 is 404"

    def _check_topic(self) -> None:
        from compactory_connectors.source.verify.verifier import Options, verify  # slow, and the demo shows no check

        with self._stage.step("verify", "comparing topic and table") as step:
            path, _, provider = self._stage.connector()
            [connector] = load_connectors([Path(path)], [provider])
            [outcome] = verify(connector, Kafka(self._stage.broker.address), Options())
            if not outcome.equal:
                raise StepFailed(f"topic and table differ: {dict(outcome.findings)}")
            rows = number(outcome.expected)
            step.result = f"all {rows} active rows are in the topic as the table has them, and nothing else"

    def _check_bad_record(self) -> None:
        stage = self._stage
        with stage.step("poison", "writing a record that is no JSON") as step:
            producer = Kafka(stage.broker.address).producer({}, {}, lambda _error: None)
            producer.produce(TOPIC, b"{", b"poison")
            if producer.flush(STEP_TIMEOUT):
                raise Unreachable("Kafka", "the broker did not take the record")
            stage.wait(lambda: bool(self._server.errors()[1]), "/v1/errors does not list the bad record")
            stage.wait(lambda: self._acquirer("T1") is not None, "T1 is not served")
            [bad] = self._server.errors()[0]
            place = f"{bad['topic']}:{bad['partition']}:{bad['offset']} ({bad['error']})"
            step.result = f"/v1/errors lists {place}; the rest is served"

    def _change(self, terminal: str, acquirer: str) -> float:
        """Change a row, wait until server and store have it, return the seconds from commit to HTTP answer."""
        assert self._store is not None
        view, otherwise = self._store[TOPIC], f"the change of {terminal} did not arrive"
        with self._stage.connect() as connection:
            connection.execute(
                "UPDATE terminal_acquirer SET acquirer_id = %s WHERE terminal_id = %s AND is_active",
                [acquirer, terminal],
            )
            committed = time.perf_counter()
            self._stage.wait(lambda: self._acquirer(terminal) == acquirer, otherwise)
            elapsed = time.perf_counter() - committed
        self._stage.wait(lambda: view[terminal]["acquirerId"] == acquirer, otherwise)
        return elapsed

    def _acquirer(self, terminal: str) -> str | None:
        """Return the acquirer that the server answers with; None without an entry."""
        try:
            return str(self._entries.get(terminal).value["acquirerId"])
        except EntryMissing:
            return None

    def _server_has_all(self) -> bool:
        with suppress(Unreachable):  # not started yet
            return bool(self._server.directories([TOPIC])[0]["entries"] == _ROWS)
        return False

    def _invitation(self) -> str:
        stage = self._stage
        return _INVITATION.format(
            postgres=stage.postgres.url(),
            kafka=stage.broker.address,
            http=stage.urls["http"],
            console=stage.urls["console"],
            topic=TOPIC,
            folder=stage.home.folder,
            scratch=stage.home.scratch,
            psql="psql" if shutil.which("psql") else embedded_binaries() / "psql",
            program="compactory" if shutil.which("compactory") else Path(sys.executable).with_name("compactory"),
        )


def _lookups(look: Callable[[str], Mapping[str, Any]]) -> int:
    """Return lookups per second. Raises StepFailed for a wrong answer."""
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < _LOOKUP_SECONDS:
        key = f"T{1 + count % 1000}"
        if look(key)["terminalId"] != key:
            raise StepFailed(f"the lookup of {key} in {TOPIC} answered with another terminal")
        count += 1
    return round(count / elapsed)
