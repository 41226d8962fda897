"""``compactory demo`` as a user runs it: up, looked at, broken, ended in every way, and nothing left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import psycopg
import pytest

from compactory import ConfigError
from compactory.kafka.client import Kafka
from compactory_cli.demo.home import Home
from compactory_cli.stack.broker import new_broker
from compactory_cli.stack.maven import kafka_lacks
from compactory_cli.stack.port import free_port
from compactory_cli.stack.postgres import PostgresServer
from tests.cli.conftest import ARTICLE, Shell
from tests.docs.pages import blocks
from tests.docs.test_examples import Folder, one
from tests.source.workload import wait_until

PATIENCE = 90.0
HAS_KAFKA = kafka_lacks() is None
TOUR = ("outbox", "process", "sink", "job") if HAS_KAFKA else ("outbox", "job")


class Demo:
    """A running demo in a folder of its own."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="compactory-test-"))
        self.scratch.chmod(0o711)  # Postgres runs as nobody when we are root
        self.shell = Shell(folder)
        self.process = self.shell.start("demo", *arguments, TMPDIR=str(self.scratch), **environment)
        self.file = folder / ".compactory" / "demo.json"

    @property
    def told(self) -> dict[str, Any]:
        """What demo.json says; waits for it."""
        wait(lambda: self.file.exists() or self.process.poll() is not None)
        assert self.file.exists(), self.process.communicate()
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    def get(self, path: str) -> tuple[int, Any]:
        """Status and document."""
        try:
            with urlopen(self.told["http"] + path, timeout=10) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    def page(self, path: str) -> str:
        """Text of a page of the console."""
        with urlopen(self.told["console"] + path, timeout=10) as answer:
            return str(answer.read().decode())

    def acquirer(self, terminal: str) -> str | None:
        """Look a terminal up over HTTP; None when there is none."""
        status, found = self.get(f"/v1/directories/terminal_acquirer/entries/{terminal}")
        assert status in {200, 404}, found
        return found["acquirerId"] if status == 200 else None

    def update(self, what: str, terminal: str) -> None:
        """Change a row."""
        with psycopg.connect(self.told["postgres"], autocommit=True) as database:
            database.execute(f"UPDATE public.terminal_acquirer SET {what} WHERE terminal_id = '{terminal}'".encode())

    def end(self, sign: signal.Signals) -> str:
        """Send a signal, wait for the end, return what was printed."""
        self.process.send_signal(sign)
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == (0 if sign is not signal.SIGKILL else -signal.SIGKILL), err
        return out


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts demos in a folder of the test; those that still run at the end are ended."""
    demos: list[Demo] = []

    def start(*arguments: str, **environment: str) -> Demo:
        demos.append(Demo(tmp_path, *arguments, **environment))
        return demos[-1]

    yield start
    for demo in demos:
        if demo.process.poll() is None:
            demo.end(signal.SIGTERM)
        shutil.rmtree(demo.scratch)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """One that several tests look at."""
    running = Demo(tmp_path_factory.mktemp("demo"))
    yield running
    told = running.told
    assert ("kafka.Kafka" in psutil.Process(told["pids"]["kafka"]).cmdline()) == HAS_KAFKA
    out = running.end(signal.SIGTERM)
    assert f"curl -i {told['http']}/v1/directories/terminal_acquirer/entries/T42" in out
    assert all(f"✓ {step}" in out for step in ("change", *TOUR))
    assert_nothing_is_left(running, told)
    assert not running.file.parent.exists()
    shutil.rmtree(running.scratch)


def test_the_first_ten_minutes_of_the_readme(demo: Demo) -> None:
    folder = Folder(demo.shell.folder)
    (folder.path / ".venv").symlink_to(sys.prefix)
    out = folder.shell(one(blocks("sh", run="demo")).replace("http://127.0.0.1:8080", demo.told["http"]))
    lines = folder.python(one(blocks("python", run="store")).replace("localhost:19092", demo.told["kafka"]))
    assert out.count('"terminalId":"T42"') == 2
    assert lines.splitlines() == ["A1", "1000"]


def test_a_changed_row_is_seen_over_http(demo: Demo) -> None:
    told = demo.told
    assert told.keys() == {"postgres", "kafka", "http", "console", "topic", "pids", "stopped"}
    assert told["pids"].keys() == {"demo", "postgres", "kafka", "source", "http", "workers", "console"}
    assert told["pids"]["demo"] == demo.process.pid
    assert all(alive(pid) for pid in told["pids"].values())
    assert demo.get("/v1/directories")[1]["directories"][0]["entries"] == 50_000
    assert demo.acquirer("T1") == "A1"
    assert demo.acquirer("T50000") == "A0"
    demo.update("acquirer_id = 'mine'", "T1")
    wait(lambda: demo.acquirer("T1") == "mine")
    demo.update("is_active = false", "T43")
    wait(lambda: demo.acquirer("T43") is None)


def test_a_payment_of_the_users_goes_through_the_workers(demo: Demo) -> None:
    with psycopg.connect(demo.told["postgres"], autocommit=True) as database:
        [(payment,)] = database.execute("INSERT INTO payments (terminal_id, amount) VALUES ('T9', 7) RETURNING id")
        receipt = "SELECT attempt FROM receipts WHERE payment_id = %s"
        wait(lambda: database.execute(receipt, [payment]).fetchall() == [(2,)])
        if HAS_KAFKA:
            row = "SELECT terminal_id, amount FROM ledger WHERE payment_id = %s"
            wait(lambda: database.execute(row, [str(payment)]).fetchall() == [("T9", 7)])


def test_the_console_shows_the_workers(demo: Demo) -> None:
    kinds = {"store", "source", "outbox", "jobs"} | ({"processor", "sink"} if HAS_KAFKA else set())
    wait(lambda: all(kind in demo.page("/") for kind in kinds))


def test_lookups_go_on_while_postgres_is_stopped(demo: Demo) -> None:
    before = demo.told["pids"]["postgres"]
    assert demo.shell("demo", "stop", "postgres").out.startswith("Postgres is down")
    assert not alive(before)
    assert "postgres" not in demo.told["pids"]
    assert demo.told["stopped"] == ["postgres"]
    assert demo.acquirer("T2") == "A2"
    assert demo.shell("demo", "start", "postgres", "--json").json["server"] == "postgres"
    assert alive(demo.told["pids"]["postgres"])
    demo.update("acquirer_id = 'later'", "T2")
    wait(lambda: demo.acquirer("T2") == "later")


def test_the_broker_hangs_when_it_is_stopped_and_keeps_its_topics(demo: Demo) -> None:
    kafka = psutil.Process(demo.told["pids"]["kafka"])
    assert "keeps its topics" in demo.shell("demo", "stop", "kafka").out
    wait_until(lambda: kafka.status() == psutil.STATUS_STOPPED, what="the stop, which a busy machine does later")
    demo.update("acquirer_id = 'meanwhile'", "T3")
    assert demo.acquirer("T3") == "A3"
    assert demo.shell("demo", "start", "kafka").code == 0
    wait(lambda: demo.acquirer("T3") == "meanwhile")


@pytest.mark.proof
def test_a_second_demo_is_refused_here_and_takes_other_ports_elsewhere(
    demo: Demo, started: Callable[..., Demo]
) -> None:
    told = demo.told
    refused = demo.shell("demo", "--json")
    assert (refused.code, refused.out) == (2, "")
    assert f"a demo runs in this folder already (pid {demo.process.pid}" in refused.error["message"]
    other = started("--json")
    elsewhere = other.told
    assert all(elsewhere[name] != told[name] for name in ("postgres", "kafka", "http"))
    other.end(signal.SIGKILL)
    left = Home(other.file.parent)
    left.claim()  # as the next demo in that folder does
    left.remove()
    assert not other.file.parent.exists()
    assert_nothing_is_left(other, elsewhere)
    assert all(alive(pid) for pid in told["pids"].values())


def test_where_no_demo_runs_nothing_can_be_stopped(tmp_path: Path) -> None:
    outcome = Shell(tmp_path)("demo", "stop", "kafka")
    assert outcome.code == 3
    assert "no demo runs in this folder" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_it_can_be_ended_while_it_starts(started: Callable[..., Demo]) -> None:
    demo = started()
    wait(lambda: any(demo.scratch.glob("compactory-demo-*/postgres/data")))
    children = psutil.Process(demo.process.pid).children(recursive=True)
    demo.end(signal.SIGINT)
    assert_nothing_is_left(demo, {"pids": {str(child.pid): child.pid for child in children}})


def test_the_check_tells_the_story_and_ends(started: Callable[..., Demo]) -> None:
    check = started("--check", "--json")
    out, err = check.process.communicate(timeout=PATIENCE)
    assert check.process.returncode == 0, err
    steps = [step for line in out.splitlines() if "step" in (step := json.loads(line))]
    assert [step["step"] for step in steps] == [
        *("postgres", "table", "kafka", "http", "store", "change"),
        *TOUR,
        *("stop", "lookups", "start", "catch up"),
    ]
    assert all(step["ok"] and step["seconds"] > 0 for step in steps)
    results = {step["step"]: step["result"] for step in steps}
    assert "in attempt 2" in results["job"]
    assert_nothing_is_left(check, {"pids": {}})


@pytest.mark.proof
def test_without_java_the_tour_names_what_it_leaves_out(started: Callable[..., Demo]) -> None:
    check = started("--check", PATH="/nonexistent")
    out, err = check.process.communicate(timeout=PATIENCE)
    assert (check.process.returncode, err) == (0, "")
    assert "✓ outbox" in out
    assert "! processor and sink are left out" in out
    assert "java" in out
    assert "✓ job" in out


@pytest.mark.parametrize(
    ("program", "cache", "reason"),
    [
        (None, "cache", "java and mvn not on PATH"),
        ("echo no network; exit 1", "cache", "could not fetch Apache Kafka: no network"),
        ("[ $1 = -q ] || { echo class file version 61.0 >&2; exit 1; }", "cache", "class file version 61.0"),
        ("exit 0", "a_file", "Not a directory"),
    ],
    ids=["nothing", "no network", "an old Java", "no cache"],
)
def test_where_apache_kafka_can_not_run_the_embedded_broker_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, cache: str, reason: str
) -> None:
    (tmp_path / "a_file").touch()
    for name in ("java", "mvn") if program else ():
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    broker, lacks = new_broker(tmp_path / "broker", free_port())
    assert lacks is not None
    assert reason in lacks
    broker.start()
    assert Kafka(broker.address).create_topic("terminals", partitions=1)
    broker.remove()


@pytest.mark.proof
def test_the_check_fails_when_the_source_is_gone(started: Callable[..., Demo]) -> None:
    check = started("--check")
    children = psutil.Process(check.process.pid).children
    assert check.process.stdout is not None
    while "✓ table" not in (line := check.process.stdout.readline()):
        assert line, check.process.communicate()
    [source] = [child for child in children() if "source" in child.cmdline()]
    source.kill()
    out, err = check.process.communicate(timeout=PATIENCE)
    assert check.process.returncode == 1, err
    assert "✗ " in out
    assert err.startswith("error: source has ended")
    assert_nothing_is_left(check, {"pids": {}})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands Postgres to another user")
def test_postgres_as_nobody_says_which_folder_keeps_it_out(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ConfigError, match=f"may not enter {tmp_path}.*set TMPDIR"):
        PostgresServer(tmp_path / "postgres").start()


def test_its_connector_is_the_articles() -> None:
    shipped = Path(__file__).parents[2] / "cli" / "compactory_cli" / "demo" / "terminal_acquirer.json"
    assert json.loads(shipped.read_text()) == json.loads(ARTICLE.read_text())


def assert_nothing_is_left(demo: Demo, told: dict[str, Any]) -> None:
    assert_nothing_runs(told)
    assert not demo.file.exists()
    assert list(demo.scratch.glob("compactory-*")) == []


def assert_nothing_runs(told: dict[str, Any]) -> None:
    for name, pid in told["pids"].items():
        wait(lambda pid=pid: not alive(pid), f"{name} still runs")


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has reaped yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait(reached: Callable[[], bool], otherwise: str = "it did not happen") -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)
