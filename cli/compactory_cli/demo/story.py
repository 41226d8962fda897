"""The demo's story: fill a table, publish it, serve it, change a row; then the tour of a payment.

The payment goes through outbox, processor and sink, and its receipt is a job.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import psycopg

from compactory import Directory, GlobalStore
from compactory.errors import CompactoryError, Unreachable
from compactory.kafka.client import Kafka
from compactory_client import Client
from compactory_connectors.schema import Adoption, adopt, install
from compactory_sql import read

from ..context.failure import StepFailed
from ..context.remote import RemoteServer
from ..stack.kafka import KafkaServer
from ..stack.postgres import embedded_binaries
from ..views.terminal import seconds
from .stage import TOPIC, Stage, shipped_text

__all__ = ["Demo"]

_ROWS = 50_000
_LOOKUPS = 1000  # while Postgres is down
_PUBLISHED, _APPROVED, _REFUSED = "payments", "payments_approved", "payments_refused"

_UP = """
Up in {startup}: the directory is served. Now a payment goes through the workers.
"""


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
        restart = Event()
        signal.signal(signal.SIGUSR1, lambda _sign, _frame: restart.set())  # `demo start postgres`
        self._tell_story(began)
        self._stage.home.announce(self._stage.state())
        self._stage.tell({"ready": self._stage.state()}, self._invitation())
        self._stage.stay(restart)

    def check(self, began: float) -> None:
        """Tell the story, and look up without Postgres. Raises StepFailed if a step fails, Ended after a signal."""
        try:
            self._tell_story(began)
            self._check_outage()
        except CompactoryError as error:
            raise StepFailed(str(error)) from error

    def close(self) -> None:
        """Close client and store."""
        self._client.close()
        if self._store is not None:
            self._store.close()

    def _tell_story(self, began: float) -> None:
        stage = self._stage
        self._set_up()
        with stage.step("change", "UPDATE in Postgres") as step:
            step.seconds = self._change("T4242", "B42")
            step.result = "from COMMIT of an UPDATE to the answer of an HTTP lookup"
        startup = time.perf_counter() - began
        stage.tell({"up": stage.urls["http"], "seconds": round(startup, 4)}, _UP.format(startup=seconds(startup)))
        _start_tour(stage)
        _, *provider = stage.connector()
        stage.run_command("console", "console", "--listen", stage.urls["console"].removeprefix("http://"), *provider)
        _tour(stage)
        stage.wait(lambda: stage.is_listening("console"), "the console does not listen", pause=0.05)

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
            kafka, compacted = Kafka(stage.broker.address), {"cleanup.policy": "compact"}
            kafka.create_topic(TOPIC, partitions=1, config=compacted)
            if isinstance(stage.broker, KafkaServer):
                # else the first transaction and the first group would wait for these topics, some seconds
                for topic in ("__transaction_state", "__consumer_offsets"):
                    kafka.create_topic(topic, partitions=4, config=compacted)
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

    def _check_outage(self) -> None:
        stage = self._stage
        with stage.step("stop", "stopping Postgres") as step:
            stage.postgres.stop()
            step.result = "Postgres is down"
        with stage.step("lookups", "looking up without Postgres") as step:
            if any(self._entries.get(f"T{n}").value["terminalId"] != f"T{n}" for n in range(1, _LOOKUPS + 1)):
                raise StepFailed("a lookup answered with another terminal")
            step.result = f"{_LOOKUPS} lookups over HTTP are answered"
        with stage.step("start", "starting Postgres") as step:
            stage.postgres.start()
            step.result = "Postgres is back"
        with stage.step("catch up", "UPDATE in Postgres") as step:
            self._change("T4242", "B43")
            step.result = "a new change arrived: the source came back by itself"

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
            self._stage.wait(lambda: self._entries.get(terminal).value["acquirerId"] == acquirer, otherwise)
            elapsed = time.perf_counter() - committed
        self._stage.wait(lambda: view[terminal]["acquirerId"] == acquirer, otherwise)
        return elapsed

    def _server_has_all(self) -> bool:
        with suppress(Unreachable):  # not started yet
            return bool(self._server.directories([TOPIC])[0]["entries"] == _ROWS)
        return False

    def _invitation(self) -> str:
        stage = self._stage
        return shipped_text(
            "invitation.txt",
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


def _start_tour(stage: Stage) -> None:
    """Create tables and topics of the payments, and start the workers."""
    with stage.connect() as connection:
        install(connection)
        connection.execute(shipped_text("payments.sql").encode())
    kafka = Kafka(stage.broker.address)
    for topic in (_PUBLISHED, _APPROVED, _REFUSED):
        kafka.create_topic(topic, partitions=1, config={"cleanup.policy": "compact"})
    ledger = [] if stage.lacks else [str(stage.home.folder / "ledger.json")]
    listen = stage.urls["workers"].removeprefix("http://")
    servers = stage.postgres.url(), stage.broker.address
    stage.run_module("workers", "compactory_cli.demo.workers", *servers, listen, *ledger)


def _tour(stage: Stage) -> None:
    """Insert two payments and print what each worker does with them. Raises StepFailed, Unreachable, Ended."""
    with stage.connect() as connection, GlobalStore(stage.broker.address, [_PUBLISHED, _APPROVED, _REFUSED]) as store:
        published, approved, refused = store[_PUBLISHED], store[_APPROVED], store[_REFUSED]
        with stage.step("outbox", "publishing a payment") as step:
            connection.execute("INSERT INTO payments (terminal_id, amount) VALUES ('T42', 19.99), ('T43', 2500)")
            stage.wait(lambda: "2" in published, "the relay has not sent the payments")
            step.result = "payments inserted and published in one transaction; the relay has sent them to a topic"
        if stage.lacks:
            stage.tell({"left out": ["process", "sink"], "reason": stage.lacks}, f" [yellow]![/] {_left_out(stage)}")
        else:
            with stage.step("process", "checking the payments") as step:
                stage.wait(lambda: "1" in approved and "2" in refused, "the processor has not checked the payments")
                step.result = f"a function has approved payment 1, and refused payment 2: {refused['2']['error']}"
            with stage.step("sink", "writing approved payments to a table") as step:
                row = _await_row(stage, connection, "SELECT terminal_id, amount FROM ledger WHERE payment_id = '1'")
                step.result = f"payment 1 is in the table ledger: {row[0]}, {row[1]}; from the topic {_APPROVED}"
        with stage.step("job", "sending a receipt") as step:
            [attempt] = _await_row(stage, connection, "SELECT attempt FROM receipts WHERE payment_id = 1")
            step.result = f"the receipt is sent, in attempt {attempt}: in attempt 1 the mail server was down"


def _await_row(stage: Stage, connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    """Return the first row of a query once there is one."""
    rows: list[tuple[Any, ...]] = []

    def has_row() -> bool:
        rows[:] = connection.execute(query.encode()).fetchall()
        return bool(rows)

    stage.wait(has_row, f"no row yet of {query}", pause=0.01)
    return rows[0]


def _left_out(stage: Stage) -> str:
    return f"processor and sink are left out, for the embedded broker serves no consumer groups ({stage.lacks})"
