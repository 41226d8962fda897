"""Changes: 2,000 clients that watch a directory over HTTP; what a watch costs the store that writes are read into."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.comparisons.http_lookups import server
from benchmarks.rows import AT_LEAST, AT_MOST, Figures, Row, Wanted, beside, plain
from benchmarks.stage import Comparison, Measured, Stage, Terms, python
from compactory_cli.stack.port import free_port

CLIENTS = 2000
CHANGES = 100_000
ENTRIES = 10_000


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"watchers": _watchers, "watched": _watched}


def _watchers(stage: Stage) -> Measured:
    topic, port = stage.topic(ENTRIES, purpose="watch"), free_port()
    served = ["compactory_cli", "serve", topic, "--kafka", stage.kafka, "--listen", f"127.0.0.1:{port}"]
    with server(port, "/readyz", *served):
        taken = stage.alternate(
            {"watch": python("http_watch", port, stage.kafka, topic, CLIENTS)}, rounds=1, warm=False
        )
    return Measured(list(_watchers_rows(taken)), taken.rounds)


def _watchers_rows(taken: Figures) -> Iterator[Row]:
    what = f"change → the last of {CLIENTS:,} clients over HTTP, 100 changes/s, p99"
    yield from plain(taken, what, "watch", _latency, figure="last_p99_ms", wanted=Wanted(AT_MOST, 250, "ms"))
    what = f"memory of the server for each of {CLIENTS:,} clients"
    yield from plain(taken, what, "watch", _memory, figure="kb", wanted=Wanted(AT_MOST, 40, "KB"))


def _watched(stage: Stage) -> Measured:
    topic = stage.topic(ENTRIES, purpose="watched")
    commands = {name: python("watched", stage.kafka, topic, CHANGES, name) for name in ("alone", "watched")}
    taken = stage.alternate(commands)
    wanted = Wanted(AT_LEAST, 0.9)
    row = beside(
        taken,
        f"{CHANGES:,} writes until they are visible, one watch",
        "watched",
        ("alone", "without"),
        _rate,
        wanted=wanted,
    )
    return Measured([row], taken.rounds)


def _latency(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'last_p99_ms'):.0f} ms, p50 {taken.median(name, 'last_p50_ms'):.0f} ms"


def _memory(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'kb'):.1f} KB"


def _rate(taken: Figures, name: str) -> str:
    return f"{CHANGES / taken.median(name, 'seconds') / 1000:.0f} k/s"
