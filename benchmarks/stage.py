"""Where benchmarks are measured: one Kafka for all, topics that are filled once, programs that run in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.rows import Figures, Row
from benchmarks.topics import filled
from tests.stack.apache_kafka import LONG, ApacheKafka

__all__ = ["LAUNCHED", "WORK", "Absent", "Measured", "Stage", "Terms", "kafka_server"]

WORK = Path(__file__).parents[1] / "build" / "benchmarks"
LAUNCHED = "BENCH_LAUNCHED"
"""When a program was launched, in seconds since 1970: an environment variable of the program."""

_PROGRAM_SECONDS = 900  # after which a program is given up; one that holds a snapshot later


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How much is measured: rounds, seconds after which a comparison begins no further one, entries of the topics.

    ``held``: seconds for which a snapshot is held open under load.
    """

    rounds: int = 3
    seconds: float = 60.0
    entries: int = 1_000_000
    disk_entries: int = 1_000_000
    growth: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    held: float = 10.0

    @classmethod
    def full(cls, rounds: int = 5) -> Terms:
        """Return the terms of the long run: ten million entries on disk and in the plots, an hour's snapshot."""
        growth = (10_000, 100_000, 1_000_000, 10_000_000)
        return cls(rounds=rounds, seconds=900.0, disk_entries=10_000_000, growth=growth, held=3600.0)


@dataclass(frozen=True)
class Measured:
    """What one comparison came to: its rows, and every figure of every round."""

    rows: list[Row]
    figures: Mapping[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Absent:
    """Stands for the command of a program that can't be run here, and says why."""

    reason: str


Command = Sequence[str] | Absent
Comparison = Callable[["Stage"], Measured]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What comparisons run on."""

    kafka: str
    terms: Terms

    def topic(self, entries: int, partitions: int = 1, purpose: str = "") -> str:
        """Return a topic of so many entries, filled on first use. One with a ``purpose`` is not shared."""
        return filled(self.kafka, entries, partitions, purpose)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield an empty folder on the disk of this checkout."""
        WORK.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            yield Path(folder)

    def alternate(
        self,
        commands: Mapping[str, Command],
        *,
        rounds: int | None = None,
        warm: bool = True,
        before: Callable[[str], None] | None = None,
    ) -> Figures:
        """Run each program in a process of its own, in turns; return the figures that each prints as JSON.

        In turns, because the machine is not equally busy all the time; one more round first (unless ``warm`` is off),
        for the page cache. ``before`` is called with the program's name each time. A program that prints ``absent``
        says why it can't be run, and isn't again. A round is begun only while there is time, one in any case.
        """
        until = time.monotonic() + self.terms.seconds
        absent = {name: command.reason for name, command in commands.items() if isinstance(command, Absent)}
        runnable = {name: command for name, command in commands.items() if not isinstance(command, Absent)}
        figures: dict[str, list[dict[str, Any]]] = {name: [] for name in runnable}
        for number in range((rounds or self.terms.rounds) + warm):
            if number > warm and time.monotonic() > until:
                break
            for name, command in runnable.items():
                if name in absent:
                    continue
                if before is not None:
                    before(name)
                found = run(command, _PROGRAM_SECONDS + self.terms.held)
                if "absent" in found:
                    absent[name] = found["absent"]
                elif number >= warm:
                    figures[name].append(found)
        return Figures({name: found for name, found in figures.items() if name not in absent}, absent)


def python(module: str, *arguments: object) -> list[str]:
    """Return the command of one of the `programs`."""
    return [sys.executable, "-m", f"benchmarks.programs.{module}", *map(str, arguments)]


def run(command: Sequence[str], limit: float = _PROGRAM_SECONDS) -> dict[str, Any]:
    """Run a program; return the JSON of its last line. Raises RuntimeError with what it said when it failed."""
    began = time.monotonic()
    environment = {**os.environ, LAUNCHED: repr(time.time())}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit, env=environment)
    if done.returncode:
        said = f"{done.stdout[-500:]}{done.stderr[-3000:]}"
        raise RuntimeError(f"{' '.join(command)} failed after {time.monotonic() - began:.1f} s:\n{said}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def kafka_server() -> Iterator[str]:
    """Yield the address of the Kafka to measure on: that of ``BENCH_KAFKA``, or one that is started for it."""
    given = os.environ.get("BENCH_KAFKA")
    if given:
        yield given
        return
    server = ApacheKafka(java=LONG, heap="1g")
    try:
        server.start()
        yield server.address
    finally:
        server.remove()
