"""``compactory demo`` as a user runs it: up, looked at, ended in every way, and nothing left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from compactory import Directory, GlobalStore
from tests.cli.conftest import ARTICLE, Shell

PATIENCE = 90.0


class Demo:
    """A running demo in a folder of its own."""

    def __init__(self, folder: Path, scratch: Path, *arguments: str) -> None:
        self.shell = Shell(folder)
        self.process = self.shell.start("demo", *arguments, TMPDIR=str(scratch))
        self.file = folder / ".compactory" / "demo.json"
        self.scratch = scratch

    def ready(self) -> dict[str, Any]:
        """What demo.json says once it is there."""
        wait(lambda: self.file.exists() or self.process.poll() is not None)
        assert self.file.exists(), self.process.communicate()
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    def end(self, sign: signal.Signals) -> str:
        """Send a signal, wait for the end, return what was printed."""
        self.process.send_signal(sign)
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == (0 if sign is not signal.SIGKILL else -signal.SIGKILL), err
        return out


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts demos, each in the folder named; those that still run at the end are ended."""
    demos: list[Demo] = []
    scratch = Path(tempfile.mkdtemp(prefix="compactory-test-"))
    scratch.chmod(0o711)  # Postgres runs as nobody when we are root

    def start(name: str = "here", *arguments: str) -> Demo:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        demos.append(Demo(folder, scratch, *arguments))
        return demos[-1]

    yield start
    for demo in demos:
        if demo.process.poll() is None:
            demo.end(signal.SIGTERM)
    shutil.rmtree(scratch)


def test_it_shows_the_path_and_leaves_nothing_behind(started: Callable[..., Demo]) -> None:
    demo = started()
    told = demo.ready()
    assert told.keys() == {"postgres", "kafka", "topic", "pids"}
    assert told["pids"].keys() == {"demo", "postgres", "kafka", "source"}
    assert told["pids"]["demo"] == demo.process.pid
    assert all(alive(pid) for pid in told["pids"].values())

    directory = Directory("terminal_acquirer", key="terminalId", active="isActive")
    with (
        psycopg.connect(told["postgres"], autocommit=True) as database,
        GlobalStore(told["kafka"], [directory]) as store,
    ):
        view = store["terminal_acquirer"]
        assert len(view) == 50_000
        assert (view["T1"]["terminalId"], view["T50000"]["terminalId"]) == ("T1", "T50000")
        database.execute("UPDATE public.terminal_acquirer SET acquirer_id = 'mine' WHERE terminal_id = 'T42'")
        wait(lambda: view["T42"]["acquirerId"] == "mine")
        database.execute("UPDATE public.terminal_acquirer SET is_active = false WHERE terminal_id = 'T43'")
        wait(lambda: "T43" not in view)
    look_with_the_commands_it_tells(demo)

    out = demo.end(signal.SIGTERM)
    assert "✓ change" in out
    assert "✓ lookups" in out
    assert "✓ catch up" in out
    assert_nothing_is_left(demo, told)
    assert not demo.file.parent.exists()


def look_with_the_commands_it_tells(demo: Demo) -> None:
    demo.shell.environment["COMPACTORY_CONFIG"] = ".compactory/demo.toml"
    assert demo.shell("get", "terminal_acquirer", "T42", "--json").json["value"]["acquirerId"] == "mine"
    assert demo.shell("get", "terminal_acquirer", "T43").code == 1
    assert demo.shell("directories", "--json").json["directories"][0]["entries"] == 49_999
    assert demo.shell("sql", "status").code == 0
    provider = ("--provider", "tpp=.compactory/tpp.properties")
    outcome = demo.shell("source", "validate", ".compactory/terminal_acquirer.json", *provider, "--json")
    assert outcome.json["connectors"][0]["tables"][0]["adopted"] is True


def test_lookups_go_on_when_postgres_is_killed_and_ctrl_c_ends_it(started: Callable[..., Demo]) -> None:
    demo = started("here", "--json")
    told = demo.ready()
    os.kill(told["pids"]["postgres"], signal.SIGKILL)
    wait(lambda: not alive(told["pids"]["postgres"]))
    with GlobalStore(told["kafka"], ["terminal_acquirer"]) as store:
        assert store["terminal_acquirer"]["1"]["terminalId"] == "T1"
    steps = [json.loads(line) for line in demo.end(signal.SIGINT).splitlines()]
    assert [step["step"] for step in steps if "step" in step] == [
        *("kafka", "postgres", "table", "source", "store"),
        *("change", "stop", "lookups", "start", "catch up"),
    ]
    assert all(step["ok"] and step["seconds"] > 0 for step in steps if "step" in step)
    assert [step["ended"] for step in steps if "ended" in step] in ([], ["postgres"])
    assert_nothing_is_left(demo, told)


def test_a_second_demo_is_refused_here_and_takes_other_ports_elsewhere(started: Callable[..., Demo]) -> None:
    first = started()
    told = first.ready()
    refused = first.shell("demo", "--json")
    assert refused.code == 2
    assert f"a demo runs in this folder already (pid {first.process.pid}" in refused.error["message"]
    assert first.file.exists()
    other = started("elsewhere")
    elsewhere = other.ready()
    assert elsewhere["kafka"] != told["kafka"]
    assert elsewhere["postgres"] != told["postgres"]
    other.end(signal.SIGTERM)
    assert_nothing_runs(elsewhere)
    assert all(alive(pid) for pid in told["pids"].values())


def test_a_killed_demo_leaves_no_process_and_the_next_one_clears_up(started: Callable[..., Demo]) -> None:
    killed = started()
    told = killed.ready()
    killed.end(signal.SIGKILL)
    assert_nothing_runs(told)
    assert len(list(killed.scratch.glob("compactory-*"))) == 1

    check = started("here", "--check")
    out, err = check.process.communicate(timeout=PATIENCE)
    assert check.process.returncode == 0, err
    assert "✓ catch up" in out
    assert_nothing_is_left(check, told)


def test_it_can_be_ended_while_it_starts(started: Callable[..., Demo]) -> None:
    demo = started()
    wait(lambda: any(demo.scratch.glob("compactory-demo-*/postgres/data")))
    children = psutil.Process(demo.process.pid).children(recursive=True)
    demo.end(signal.SIGTERM)
    assert_nothing_is_left(demo, {"pids": {str(child.pid): child.pid for child in children}})


def test_its_connector_is_the_articles(tmp_path: Path) -> None:
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
