"""The outbox: a relay beside the algorithm written plainly; commit → Kafka; what publishing costs."""

from __future__ import annotations

from benchmarks.debezium import jars
from benchmarks.rows import AT_LEAST, Figures, Row, Wanted, beside
from benchmarks.stage import Absent, Command, Comparison, Measured, Stage, Terms, python

SECONDS = 20
TRANSACTIONS = 3000

_HELD = "outbox, behind as many dead rows and a held snapshot"


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"outbox-send": _send, "outbox-latency": _latency, "outbox-publish": _publish}


def _send(stage: Stage) -> Measured:
    sides = {"bare": ("bare", 1), "relay": ("relay", 1), "relay-100": ("relay", 100), "held": ("held", 1)}
    commands = {
        name: python("outbox_send", stage.kafka, mode, topics, stage.terms.entries)
        for name, (mode, topics) in sides.items()
    }
    taken = stage.alternate(commands, warm=False)
    rows = [
        beside(taken, "outbox, one topic", "relay", ("bare", "bare loop"), _rate, wanted=Wanted(AT_LEAST, 1.4)),
        beside(taken, "outbox, 100 topics", "relay-100", ("relay", "one topic"), _rate, wanted=Wanted(AT_LEAST, 0.8)),
        beside(taken, _HELD, "held", ("relay", "without"), _rate, wanted=Wanted(AT_LEAST, 0.8)),
    ]
    return Measured(rows, taken.rounds)


def _rate(taken: Figures, name: str) -> str:
    rate = taken.median(name, "messages") / taken.median(name, "seconds")
    return f"{rate / 1000:.0f} k messages/s, CPU {taken.median(name, 'cpu'):.1f} s"


def _latency(stage: Stage) -> Measured:
    commands: dict[str, Command] = {
        mode: python("outbox_visible", stage.kafka, mode, SECONDS) for mode in ("bare", "relay")
    }
    folder = jars()
    commands["debezium"] = (
        folder if isinstance(folder, Absent) else python("outbox_visible", stage.kafka, "debezium", SECONDS, folder)
    )
    taken = stage.alternate(commands)
    p50, p99 = (taken.median("relay", figure) for figure in ("p50_ms", "p99_ms"))
    row = Row(
        what="outbox, commit → in Kafka at 100/s",
        figure=f"p50 {p50:.1f}, p99 {p99:.1f} ms",
        beside=f"bare loop p50 {taken.median('bare', 'p50_ms'):.1f}, p99 {taken.median('bare', 'p99_ms'):.1f} ms",
        ratio=taken.ratio("bare", "relay", "p50_ms"),
        wanted="p50 ≤ 8, p99 ≤ 40 ms",
        met=p50 <= 8 and p99 <= 40,
    )
    peer = ("debezium", "Debezium's outbox event router")
    routed = beside(taken, "outbox, commit → in Kafka at 100/s", "relay", peer, _delay, figure="p50_ms")
    return Measured([row, routed], taken.rounds)


def _delay(taken: Figures, name: str) -> str:
    return f"p50 {taken.median(name, 'p50_ms'):.1f}, p99 {taken.median(name, 'p99_ms'):.1f} ms"


def _publish(stage: Stage) -> Measured:
    taken = stage.alternate({"publish": python("outbox_visible", "publish", TRANSACTIONS)}, warm=False)
    alone, both = (taken.median("publish", figure) / TRANSACTIONS * 1000 for figure in ("alone", "seconds"))
    row = Row(
        what="outbox, publish in a transaction of one insert",
        figure=f"{both:.2f} ms",
        beside=f"the insert alone {alone:.2f} ms",
        ratio=both / alone,
        wanted="≤ 1.5",
        met=both <= 1.5 * alone,
    )
    return Measured([row], taken.rounds)
