"""Programs run in turns, each in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import job_queues, peers
from benchmarks.stage import Absent, Stage, Terms, run

STAGE = Stage(kafka="localhost:1", terms=Terms(rounds=2))


def printing(**figures) -> list[str]:
    return [sys.executable, "-c", f"print('noise'); print({json.dumps(json.dumps(figures))})"]


def test_programs_run_in_turns_after_a_round_that_does_not_count() -> None:
    called: list[str] = []
    taken = STAGE.alternate({"one": printing(seconds=1), "two": printing(seconds=2)}, before=called.append)
    assert called == ["one", "two"] * 3
    assert taken.rounds == {"one": [{"seconds": 1}] * 2, "two": [{"seconds": 2}] * 2}


def test_a_program_that_can_not_be_run_is_left_out_and_says_why() -> None:
    called: list[str] = []
    commands = {"one": printing(absent="not built"), "two": Absent("no Java"), "three": printing(rate=3)}
    taken = STAGE.alternate(commands, rounds=1, before=called.append)
    assert called == ["one", "three", "three"]
    assert (dict(taken.rounds), dict(taken.absent)) == (
        {"three": [{"rate": 3}]},
        {"one": "not built", "two": "no Java"},
    )


def test_without_time_there_is_one_round_that_counts() -> None:
    hurried = Stage(kafka="localhost:1", terms=Terms(rounds=9, seconds=0.0))
    assert hurried.alternate({"one": printing(seconds=1)}).rounds == {"one": [{"seconds": 1}]}


def test_a_program_that_fails_says_what_it_said() -> None:
    with pytest.raises(RuntimeError, match="it broke"):
        run([sys.executable, "-c", "raise SystemExit('it broke')"])


def test_folders_are_gone_afterwards() -> None:
    with STAGE.folder() as folder:
        (folder / "state").mkdir()
    assert not folder.exists()


def test_without_java_its_rows_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    peers.built.cache_clear()
    command = peers.global_table("localhost:1", "topic", "memory", tmp_path, entries=1)
    peers.built.cache_clear()
    assert command == Absent("java and mvn not on PATH")


def test_job_queues_that_can_not_be_installed_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(job_queues, "_BUILT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    queues = job_queues.job_queues(100)
    assert (queues["River"], queues["graphile-worker"]) == (Absent("go not on PATH"), Absent("npm not on PATH"))
    program = tmp_path / "go"
    program.write_text("#!/bin/sh\necho no network >&2; exit 1\n")
    program.chmod(0o755)
    assert job_queues.job_queues(100)["River"] == Absent("go failed: no network")
