"""examples/spark/nightly.sh: the commands exist, their order is kept, and a scheduler gets the code of what failed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, usage_problem

SPARK = ROOT / "examples" / "spark"
STEPS = ("spark load", "verify", "spark export")

# Notes its arguments, a line a call, and ends with the code that the environment has for its step.
PRETENDING = """#!/bin/sh
printf '%s\\n' "$*" >> "$CALLS"
case "$*" in *"$FAILS"*) exit "$CODE" ;; esac
"""


def run(folder: Path, *arguments: str, fails: str = "nothing", code: int = 0, **settings: str) -> tuple[int, list[str]]:
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    pretending = folder / "compactory"
    pretending.write_text(PRETENDING)
    pretending.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "CALLS": str(calls), "FAILS": fails, "CODE": str(code), **settings}
    done = subprocess.run(
        [SPARK / "nightly.sh", *arguments], env=environment, capture_output=True, text=True, timeout=20, check=False
    )
    assert "not found" not in done.stderr, done.stderr
    return done.returncode, calls.read_text().splitlines() if calls.exists() else []


def test_the_steps_of_a_night(tmp_path: Path) -> None:
    code, calls = run(tmp_path, "/in", "/lake", "2026-03-01")
    assert code == 0
    assert [next(step for step in STEPS if call.startswith(step)) for call in calls] == list(STEPS)
    load, verify, export = calls
    assert "/in/2026-03-01 " in load
    assert "--load-id terminal_acquirer-2026-03-01 " in load
    assert "--wait 120" in verify
    assert export.startswith("spark export terminal_acquirer --to /lake/terminal_acquirer/2026-03-01")
    for call in calls:
        assert usage_problem(shlex.split(call)) is None, call
    assert run(tmp_path, "/in", "/lake")[0] == 0
    assert run(tmp_path, "/in")[1] == [], "nothing is done without all that it needs"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_the_code_of_the_step_that_failed(tmp_path: Path, step: str, code: int) -> None:
    ended, calls = run(tmp_path, "/in", "/lake", "2026-03-01", fails=step, code=code)
    assert ended == code
    assert len(calls) == STEPS.index(step) + 1, "nothing comes after it"


def test_systemd_tries_again_what_is_worth_it() -> None:
    service = (SPARK / "compactory-nightly.service").read_text()
    assert re.search(r"^Restart=on-failure$", service, re.MULTILINE)
    assert re.search(r"^RestartPreventExitStatus=1 2$", service, re.MULTILINE)
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze to check the units with")
    units = [SPARK / "compactory-nightly.timer"]
    done = subprocess.run([analyze, "verify", "--man=no", *units], capture_output=True, text=True, check=False)
    assert "Unknown" not in done.stderr, done.stderr
