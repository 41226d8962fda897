"""What all commands share: help, version, common flags, wrong usage."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from compactory_cli.main import app
from tests.cli.conftest import NOBODY_HOME, Shell, in_process
from tests.docs.pages import usage_problem


def test_the_version_is_that_of_the_package(compactory: Shell) -> None:
    assert compactory("--version").out == "compactory 0.1.0\n"


def commands(item: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Every command and group, with True for a command that runs."""
    children = getattr(item, "commands", {})
    yield path, not children or (bool(path) and item.invoke_without_command)
    for name, child in children.items():
        yield from commands(child, (*path, name))


@pytest.mark.parametrize(("path", "runs"), list(commands(typer.main.get_command(app))))
def test_every_help_fits_a_screen_and_shows_an_example(path: tuple[str, ...], runs: bool) -> None:
    outcome = in_process(*path, "--help")
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) <= 40
    if not runs and path:
        return
    for flag in ("--config", "--kafka", "--postgres", "--json", "--log-level", "--log-format"):
        assert flag in outcome.out
    if path:
        [example] = re.findall(r"Example: `compactory ([^`]+)`", outcome.out)
        words = shlex.split(" ".join(example.split()))
        assert tuple(words[: len(path)]) == path
        assert usage_problem(words) is None


def test_help_loads_nothing_that_takes_long() -> None:
    code = "import compactory_cli.main, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"rich", "structlog", "psycopg", "pydantic", "confluent_kafka", "fastapi", "compactory_connectors"}
    assert heavy.isdisjoint(loaded)


def test_without_a_command_there_is_help(compactory: Shell) -> None:
    outcome = compactory()
    assert outcome.code == 2
    assert outcome.err.startswith("Usage: compactory")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gte"], "No such command 'gte'. Did you mean 'get'?"),
        (["get", "d", "k", "--kafak", "h:1"], "No such option: --kafak"),
        (["get", "d"], "Missing argument 'KEY'"),
        (["get", "d", "k", "--log-level", "loud"], "'--log-level': 'loud' is not one of"),
    ],
)
def test_wrong_usage_is_exit_code_2(compactory: Shell, arguments: list[str], message: str) -> None:
    outcome = compactory(*arguments)
    assert outcome.code == 2
    assert message in outcome.err
    outcome = compactory(*arguments, "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.error["message"]
    assert outcome.error["exit_code"] == 2


def test_common_flags_may_come_before_or_after_the_command(compactory: Shell) -> None:
    before = compactory("--json", "--kafka", "http://h:1", "get", "d", "k")
    after = compactory("get", "d", "k", "--json", "--kafka", "http://h:1")
    both = compactory("--json", "--kafka", NOBODY_HOME, "get", "d", "k", "--kafka", "http://h:1")
    assert before.code == after.code == both.code == 2
    assert before.error == after.error == both.error
    assert before.error["problems"][0].startswith("--kafka: ")


def test_all_problems_of_file_environment_and_flags_come_together(compactory: Shell) -> None:
    compactory.write("compactory.toml", '[store]\nbackend = "rocksdb"\n[directories.d]\nkye = "id"\n')
    outcome = compactory("get", "d", "k", "--kafka", "http://h:1", COMPACTORY_LOG_FORMAT="yaml")
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith('error: 4 problems\n  • compactory.toml: [store] path: the backend "rocksdb" needs a')
