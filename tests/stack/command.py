"""``compactory`` in a process forked from one that has imported its modules: imports take longer than most commands."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import typer.main

from compactory_cli.entry import run
from compactory_cli.main import app

__all__ = ["fork_server", "run_command", "start_command"]

# Making typer's tree of all commands takes longer than most commands: each process has it from the one it comes from.
typer.main.get_command = cache(typer.main.get_command)
typer.main.get_command(app)


def run_command(
    words: Sequence[str | Path], *, folder: Path, environment: Mapping[str, str], timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run ``compactory`` with these words to its end. Raises subprocess.TimeoutExpired."""
    with tempfile.TemporaryDirectory() as written:
        files = [Path(written, name) for name in ("out", "err")]
        process = start_command(words, folder=folder, environment=environment, out=files[0], err=files[1])
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([*map(str, words)], timeout)
        out, err = (path.read_text() for path in files)
        return subprocess.CompletedProcess([*map(str, words)], process.exitcode, out, err)


def start_command(
    words: Sequence[str | Path], *, folder: Path, environment: Mapping[str, str], out: Path, err: Path
) -> BaseProcess:
    """Start ``compactory`` with these words; what it prints is added to the two files."""
    texts = [str(word) for word in words]
    process = fork_server().Process(target=_command, args=(texts, folder, dict(environment), [out, err]))
    process.start()
    return process


@cache
def fork_server() -> ForkServerContext:
    """Makes processes that have imported what most of them need."""
    context = get_context("forkserver")
    parts = [f"compactory_connectors.{part}" for part in ("jobs", "outbox", "sink", "source")]
    context.set_forkserver_preload([__name__, "compactory_api.server", *parts])
    return context


def _command(words: list[str], folder: Path, environment: dict[str, str], files: list[Path]) -> None:
    for number, path in enumerate(files, 1):
        with path.open("a") as file:
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["compactory", *words]
    run()
