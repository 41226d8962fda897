"""Other job queues on Postgres: River (Go), graphile-worker (npm), PgQueuer and procrastinate (group ``bench``)."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.stage import WORK, Absent, Command, python

__all__ = ["SAMPLES", "job_queues"]

SAMPLES = 300
"""Single jobs whose time from enqueue to handler is measured."""

_SOURCES = Path(__file__).with_name("queues")
_BUILT = WORK / "queues"
_INSTALL_SECONDS = 300


def job_queues(jobs: int) -> dict[str, Command]:
    """Return the command that measures each queue with so many jobs, or why it can't run; install what it needs."""
    return {
        "graphile-worker": _graphile(jobs),
        "River": _river(jobs),
        "PgQueuer": _python_queue("pgqueuer", jobs),
        "procrastinate": _python_queue("procrastinate", jobs // 100),
    }


def _river(jobs: int) -> Command:
    program = _BUILT / "river"
    build = ["go", "build", "-C", _SOURCES / "river", "-o", program]
    return _absent(build, _SOURCES) or _on_postgres(jobs, program)


def _graphile(jobs: int) -> Command:
    folder = shutil.copytree(_SOURCES / "graphile", _BUILT / "graphile", dirs_exist_ok=True)
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"]
    return _absent(install, folder) or _on_postgres(jobs, "node", folder / "main.js")


def _python_queue(name: str, jobs: int) -> Command:
    if importlib.util.find_spec(name) is None:
        return Absent(f"{name} not installed (make bench does)")
    return _on_postgres(jobs, *python(f"peers.{name}_jobs"))


def _absent(install: Sequence[str | Path], folder: Path) -> Absent | None:
    """Run the command that installs a queue; return why it failed, or None."""
    if shutil.which(install[0]) is None:
        return Absent(f"{install[0]} not on PATH")
    try:
        done = subprocess.run(
            install, cwd=folder, check=False, capture_output=True, text=True, timeout=_INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Absent(f"{install[0]} took longer than {_INSTALL_SECONDS} s")
    return Absent(f"{install[0]} failed: {done.stderr.strip()[-200:]}") if done.returncode else None


def _on_postgres(jobs: int, *command: str | Path) -> Command:
    return python("peers.on_postgres", jobs, SAMPLES, *command)
