"""From a write to its sight: publish → visible, put → visible, and barriers on a quiet topic, beside ktables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.peers import KTABLES, ktables_visible
from benchmarks.rows import AT_MOST, Figures, Row, Wanted, beside, plain
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

ENTRIES = 10_000
VALUES = 330
BARRIERS = 20
ROUNDS = 3  # each makes hundreds of values


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"visibility": _visibility}


def _visibility(stage: Stage) -> Measured:
    topic = stage.topic(ENTRIES, purpose="visibility")
    arguments = (stage.kafka, topic, VALUES, BARRIERS)
    commands = {
        "ours": python("store_visible", *arguments),
        "ktables": ktables_visible(*arguments),
        "tuned": ktables_visible(*arguments, "tuned"),
    }
    taken = stage.alternate(commands, warm=False, rounds=min(ROUNDS, stage.terms.rounds))
    return Measured(list(_rows(taken)), taken.rounds)


def _rows(taken: Figures) -> Iterator[Row]:
    as_it_comes = ("ktables", KTABLES)
    own = "own writers, acks=all and idempotent"
    for name, what in (("publish", "publish → visible, one producer for both"), ("put", f"put → visible, {own}")):
        for cut, wanted in (("p50", Wanted(AT_MOST, 1.0)), ("p99", None)):
            figure = f"{name}_{cut}_ms"
            describe = partial(_milliseconds, figure=figure)
            bound = wanted if name == "publish" else None
            yield beside(taken, f"{what}, {cut}", "ours", as_it_comes, describe, figure=figure, wanted=bound)
    figure = "barrier_p50_ms"
    describe = partial(_milliseconds, figure=figure)
    what = "barrier() on a quiet topic, p50"
    wanted = Wanted(AT_MOST, 20, "ms")
    yield from plain(taken, what, "ours", describe, figure=figure, wanted=wanted)
    yield beside(taken, what, "ours", as_it_comes, describe, figure=figure)
    tuned = ("tuned", f"{KTABLES}, waits of 10 and 20 ms")
    yield beside(taken, what, "ours", tuned, describe, figure=figure)


def _milliseconds(taken: Figures, name: str, *, figure: str) -> str:
    return f"{taken.median(name, figure):.2f} ms"
