"""Exit codes, one for each kind of outcome."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from compactory import (
    BackendFailed,
    BadRecord,
    CompactoryError,
    ConfigError,
    LeaseLost,
    NotReady,
    StartTimeout,
    StoreFailed,
    UnknownDirectory,
    Unreachable,
    WaitTimeout,
)
from compactory.errors import BackendLocked
from compactory_cli.context.failure import StepFailed, exit_code_of, report
from tests.cli.conftest import Article, Shell


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StepFailed("x"), 1),
        (BadRecord("x"), 1),
        (CompactoryError("x"), 1),
        (ConfigError("x"), 2),
        (UnknownDirectory("x"), 2),
        (Unreachable("Kafka", "x"), 3),
        (StartTimeout("x"), 3),
        (WaitTimeout("x"), 3),
        (NotReady("x"), 3),
        (LeaseLost("x"), 4),
        (BackendLocked("x", "/folder", 1), 4),
        (BackendFailed("x", "/folder"), 1),
        (StoreFailed("x", Unreachable("Kafka", "y")), 3),
        (StoreFailed("x", ValueError("y")), 1),
        (ValueError("a defect"), None),
    ],
)
def test_an_error_has_an_exit_code(error: Exception, code: int | None) -> None:
    assert exit_code_of(error) == code


def test_people_see_one_problem_on_one_line_and_several_as_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    report(ConfigError("only [one]"), 2, as_json=False)
    report(ConfigError(["one", "two"]), 2, as_json=False)
    assert capsys.readouterr().err == "error: only [one]\nerror: 2 problems\n  • one\n  • two\n"


def test_programs_see_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    blocking = [{"topic": "t", "partition": 0, "position": 1, "target": 2}]
    report(StartTimeout("late", blocking), 3, as_json=True)
    assert json.loads(capsys.readouterr().err) == {
        "error": "StartTimeout", "message": "late", "problems": ["late"], "exit_code": 3, "blocking": blocking,
    }  # fmt: skip


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_of_the_output_may_go_away(compactory: Shell, article: Article, options: list[str]) -> None:
    with compactory.start("source", "validate", *article.arguments, *options) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()  # as head does
        assert (running.wait(60), running.stderr.read()) == (0, "")


@pytest.mark.parametrize("options", [["--help"], ["source", "validate", "--json"], ["source", "validate"]])
def test_an_output_that_is_full_is_told_in_one_line(article: Article, options: list[str]) -> None:
    arguments = article.arguments if "validate" in options else ()
    with Path("/dev/full").open("w") as full:  # Linux has it
        ended = subprocess.run(
            [sys.executable, "-m", "compactory_cli", *options, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    said = b"error: the output can't be written: No space left on device; make room\n"
    if "--json" in options:
        assert json.loads(ended.stderr)["message"] == said.decode()[7:-1]
    else:
        assert ended.stderr == said
    assert ended.returncode == 1
