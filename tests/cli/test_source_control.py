"""``compactory source status|pause|resume|restart|approve`` on a source that runs, and where none answers."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from compactory.worker import Order, Verb
from compactory_api.http.access import Tokens
from compactory_api.http.listen import Listen
from compactory_api.ops.listener import Listener
from compactory_connectors import schema
from compactory_connectors.source.polling.removal import Hold
from compactory_connectors.source.runtime.worker import SourceWorker
from compactory_connectors.source.status.board import StatusBoard
from compactory_connectors.source.status.status import SourceState
from tests.api.serving import ask
from tests.api.test_operations import samples
from tests.api.test_orders import OrderedWorker
from tests.cli.conftest import Article, Outcome, Shell, in_process
from tests.store.topics import eventually

TOKENS = {"COMPACTORY_HTTP_READ_TOKEN": "rd", "COMPACTORY_HTTP_ADMIN_TOKEN": "adm"}


class Remote:
    """A source that runs in a process of its own, and commands that ask it."""

    def __init__(self, shell: Shell, article: Article, kafka: str) -> None:
        self.shell, self.article, self.kafka = shell, article, kafka
        place = ("--listen", "127.0.0.1:0", "--kafka", kafka, "--log-format", "json")
        self.process = shell.start("source", "run", *article.arguments, *place, **TOKENS)
        self.lines: list[str] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self.lines.extend, args=(self.process.stderr,))
        self._reader.start()
        try:
            found = eventually(lambda: re.search(r"health on http://127\.0\.0\.1:(\d+)", "".join(self.lines)))
        except BaseException:
            self.stop()
            raise
        self.port = int(found[1])

    def __call__(self, *arguments: str, token: str = "adm") -> Outcome:
        environment = {"COMPACTORY_URL": f"http://127.0.0.1:{self.port}", "COMPACTORY_HTTP_ADMIN_TOKEN": token}
        return self.shell("source", *arguments, **environment)

    def files(self, verb: str, *arguments: str) -> Outcome:
        """The same command for a connector file, without a process to ask."""
        return self.shell("source", verb, *self.article.arguments, "--kafka", self.kafka, *arguments)

    def figure(self, name: str, **labels: str) -> float | None:
        wanted = frozenset({"connector": self.article.path.stem, **labels}.items())
        text = ask(self.port, "/metrics").body.decode()
        return samples(text).get((f"compactory_source_{name}", wanted))

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self._reader.join(10)
        self.process.communicate()
        assert code == 0, self.lines


@pytest.fixture
def remote(compactory: Shell, article: Article, terminals: str, kafka: str) -> Iterator[Remote]:
    running = Remote(compactory, article, kafka)
    eventually(lambda: ask(running.port, "/readyz").status == 200)
    yield running
    running.stop()


def test_a_night_shift(remote: Remote, terminals: str) -> None:
    """Look, pause, look again, stop the process, resume without it: what each command says and does."""
    name = remote.article.path.stem
    shown = remote("status")
    assert (shown.code, remote.article.topic in shown.out) == (0, True)
    assert "RUNNING" in shown.out
    assert remote.figure("state", state="RUNNING") == 1
    [found] = remote("restart", name, "--table", "public.terminal_acquirer", "--json").json["connectors"]
    assert (found["state"], found["target"]) == ("RUNNING", "RUNNING")

    paused = remote("pause")
    assert (paused.code, "PAUSED" in paused.out) == (0, True), paused
    assert (remote.figure("state", state="PAUSED"), remote.figure("state", state="RUNNING")) == (1, 0)
    assert remote.figure("active", table="public.terminal_acquirer") == 0
    assert remote.figure("table_state", table="public.terminal_acquirer", state="PAUSED") == 1
    assert remote.figure("paused_seconds") > 0  # type: ignore[operator]
    assert ask(remote.port, "/livez").status == ask(remote.port, "/readyz").status == 200
    lag = remote.figure("lag_seconds", table="public.terminal_acquirer")
    with psycopg.connect(terminals, autocommit=True) as connection:
        connection.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T6', 'A')")
    unasked = remote.files("status")
    assert unasked.code == 0
    assert "no process was asked" in unasked.out
    assert re.search(r"PAUSED for \d+ s", unasked.out)
    assert "reference" not in unasked.err
    assert remote.figure("lag_seconds", table="public.terminal_acquirer") > lag  # type: ignore[operator]
    assert remote.figure("rows_total", table="public.terminal_acquirer") == 5
    remote.stop()

    once = remote.files("run", "--once")
    assert (once.code, "is paused" in once.err) == (1, True)
    assert remote.files("resume").code == 0
    again = remote.files("status", "--json")
    assert (again.code, again.json["connectors"][0]["target"]) == (1, "RUNNING"), "nobody publishes"


def test_orders_are_refused_with_what_to_do(remote: Remote) -> None:
    refused = remote("pause", token="rd")
    assert (refused.code, "COMPACTORY_HTTP_ADMIN_TOKEN" in refused.err) == (2, True)
    assert remote("restart", "--table", "gone").code == 1
    nothing = remote("approve")
    assert (nothing.code, "has this id" in nothing.err) == (2, True)
    running = remote.files("pause")
    assert (running.code, "is running" in running.err) == (4, True)


def test_a_holder_that_does_not_renew_its_lease_does_not_publish(article: Article, terminals: str, kafka: str) -> None:
    """A killed process leaves its row in the table of leases."""
    ask_files = ("source", "status", *article.arguments, "--kafka", kafka)
    with psycopg.connect(terminals, autocommit=True) as connection:
        schema.install(connection)
        connection.execute(
            "INSERT INTO compactory.leases (connector, holder, host, pid, epoch, taken_at, renewed_at)"
            " VALUES (%s, gen_random_uuid(), 'h', 7, 1, now(), now() - interval '20 s')",
            [article.path.stem],
        )
        killed = in_process(*ask_files)
        assert (killed.code, "pid 7 on host h" in killed.out, "not renewed in time" in killed.out) == (1, True, True)
        connection.execute("UPDATE compactory.leases SET renewed_at = clock_timestamp() + interval '2 s'")
        assert in_process(*ask_files).code == 0


def test_without_a_place_the_remedy_is_told(compactory: Shell) -> None:
    told = compactory("source", "pause")
    assert (told.code, "--url" in told.err) == (2, True)
    gone = compactory("source", "status", "--url", "http://127.0.0.1:1")
    assert (gone.code, "was not reached" in gone.err) == (3, True)
    malformed = compactory("source", "status", "--url", "127.0.0.1:8081")
    assert (
        malformed.code,
        "must be http://HOST[:PORT] or https://HOST[:PORT], not '127.0.0.1:8081'" in malformed.err,
    ) == (2, True)


def test_another_server_than_a_source_is_told(compactory: Shell) -> None:
    """A monitor with the wrong address must not see success; a caller without a token sees which variable to set."""
    with Listener(Listen("127.0.0.1", 0), [], Tokens(read="rd")) as listener:
        place = {"COMPACTORY_LISTEN": str(listener.address)}
        shown = compactory("source", "status", COMPACTORY_HTTP_READ_TOKEN="rd", **place)
        assert (shown.code, "runs no connectors" in shown.out) == (1, True)
        closed = compactory("source", "status", **place)
        assert (closed.code, "set COMPACTORY_HTTP_READ_TOKEN" in closed.err) == (2, True)


@pytest.mark.parametrize("order", [("source", "pause"), ("source", "restart")])
def test_an_order_without_a_token_names_the_one_that_suffices(compactory: Shell, order: tuple[str, ...]) -> None:
    with Listener(Listen("127.0.0.1", 0), [Waiting()], Tokens(read="rd", admin="adm")) as listener:
        refused = compactory(*order, COMPACTORY_URL=f"http://{listener.address}")
    assert (refused.code, "set COMPACTORY_HTTP_ADMIN_TOKEN to" in refused.err) == (2, True)
    assert "READ_TOKEN" not in refused.err
    assert "WRITE_TOKEN" not in refused.err


def test_what_is_held_is_shown_and_approved_by_its_id(compactory: Shell) -> None:
    told = Holding()
    with Listener(Listen("127.0.0.1", 0), [told], Tokens(admin="adm")) as listener:
        place = {"COMPACTORY_LISTEN": str(listener.address), "COMPACTORY_HTTP_ADMIN_TOKEN": "adm"}
        shown = compactory("source", "status", **place)
        assert shown.code == 1
        assert "public.t: 98 of 100 keys" in shown.out
        other = compactory("source", "approve", "--removal", "1", **place)
        assert (other.code, "has this id" in other.err) == (2, True)
        unasked = compactory("source", "approve", **place)
        assert (unasked.code, "not a terminal: add --removal 4f2a" in unasked.err) == (2, True)
        done = compactory("source", "approve", "c", "public.t", "--yes", "--json", **place)
        assert (done.code, done.json["connectors"][0]["connector"]) == (0, "c")
        shown = compactory("source", "approve", "c", "--removal", "4f2a", **place)
        assert (shown.code, "4f2a of public.t is approved" in shown.out, "HELD" in shown.out) == (
            0,
            True,
            False,
        )
    assert told.orders == [Order(verb=Verb.APPROVE, table="public.t", removal="4f2a")] * 2


def test_an_outage_is_told_once_and_by_the_exit_code(compactory: Shell) -> None:
    with Listener(Listen("127.0.0.1", 0), [Waiting()]) as listener:
        told = compactory("source", "status", COMPACTORY_LISTEN=str(listener.address))
    assert (told.code, told.out.count("Postgres is away")) == (1, 1)


class Waiting(OrderedWorker):
    """A source whose database is away, and with it both tables."""

    connector = "c"

    def status(self) -> dict[str, Any]:
        board = StatusBoard("c")
        board.set_state(SourceState.RUNNING)
        for name in ("public.t", "public.u"):
            board.add_table(name, name, adopted=False)
        board.set_state(SourceState.WAITING, "Postgres is away")
        board.record_session_failure("Postgres is away")
        source: Any = SimpleNamespace(status=board.picture)
        return SourceWorker(source, lambda: True).status()


class Holding(OrderedWorker):
    """A source whose one table holds a removal."""

    connector = "c"

    def tables(self) -> list[str]:
        return ["public.t"]

    def status(self) -> dict[str, Any]:
        board = StatusBoard("c")
        board.set_state(SourceState.RUNNING)
        board.add_table("public.t", "t", adopted=False)
        board.hold("public.t", "98 of 100 keys", Hold(id="4f2a", removed=98, keys=100))
        source: Any = SimpleNamespace(status=board.picture)
        return SourceWorker(source, lambda: True).status()
