"""HTTP: single lookups on 32 connections and 100,000 entries, batches of 100 keys, lookups under 10,000 changes/s.

``compactory serve`` beside a bare ASGI callable on the same uvicorn settings, asked in turns by one load generator.
Servers are pinned to one core and the generator to another: on a shared one, each answer wakes the generator, which
then preempts the server, and the slower server is preempted more often.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.programs.http_load import BATCH, CHANGES, CONNECTIONS, ENTRIES, PURPOSE
from benchmarks.rows import Figures, Row
from benchmarks.stage import Comparison, Measured, Stage, Terms, python
from compactory_cli.stack.port import free_port


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"http": _http}


def _http(stage: Stage) -> Measured:
    kafka, topic = stage.kafka, stage.topic(ENTRIES, purpose=PURPOSE)
    bare, ours = free_port(), free_port()
    served = ["compactory_cli", "serve", topic, "--kafka", kafka, "--listen", f"127.0.0.1:{ours}"]
    with server(bare, "/0", "benchmarks.programs.bare.asgi", str(bare)), server(ours, "/readyz", *served):
        taken = stage.alternate(
            {
                "bare": python("http_load", bare, "single"),
                "single": python("http_load", ours, "single"),
                "batch": python("http_load", ours, "batch"),
                "changing": python("http_load", ours, "single", kafka, topic),
            }
        )
    return Measured(list(_rows(taken)), taken.rounds)


def _rows(taken: Figures) -> Iterator[Row]:
    beside = f"bare ASGI {_described(taken, 'bare')}"
    what = f"single lookup, {CONNECTIONS} connections"
    yield _row(what, _described(taken, "single"), beside, 0.8, taken.ratio("single", "bare"))
    slower = 1 / taken.ratio("single", "bare", "p99_ms")
    yield Row(
        what="single lookup, p99",
        figure=f"{taken.median('single', 'p99_ms'):.2f} ms",
        beside=f"bare ASGI {taken.median('bare', 'p99_ms'):.2f} ms",
        ratio=slower,
        wanted="≤ 2",
        met=slower <= 2,
    )
    keys = taken.ratio("batch", "single") * BATCH
    figure = (
        f"{taken.median('batch', 'rate') * BATCH / 1000:.0f} k keys/s, p99 {taken.median('batch', 'p99_ms'):.1f} ms"
    )
    yield _row(f"batch of {BATCH} keys, keys/s", figure, "single lookups", 10, keys)
    applied = taken.median("changing", "applied")
    yield _row(
        f"single lookup under {CHANGES:,} changes/s",
        f"{_described(taken, 'changing')}; {applied:,.0f} changes/s applied",
        "the same, idle",
        0.6,
        taken.ratio("changing", "single"),
    )


def _row(what: str, figure: str, beside: str, floor: float, ratio: float) -> Row:
    return Row(what=what, figure=figure, beside=beside, ratio=ratio, wanted=f"≥ {floor:g}", met=ratio >= floor)


def _described(taken: Figures, name: str) -> str:
    rate, p50, p99 = (taken.median(name, figure) for figure in ("rate", "p50_ms", "p99_ms"))
    return f"{rate / 1000:.1f} k/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms"


@contextmanager
def server(port: int, path: str, *command: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL)
    os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
    try:
        deadline = time.monotonic() + 60
        while not _answers(port, path):
            assert process.poll() is None, command
            assert time.monotonic() < deadline, command
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def _answers(port: int, path: str) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError):
        return False
