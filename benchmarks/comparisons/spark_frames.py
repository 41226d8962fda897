"""A directory of 1 M entries as a DataFrame beside Spark's Kafka connector; 5 M rows enriched by it beside Parquet."""

from __future__ import annotations

from functools import partial

from benchmarks.comparisons.bootstrap import count
from benchmarks.rows import AT_LEAST, Figures, Wanted, beside
from benchmarks.stage import Comparison, Measured, Stage, Terms, python

__all__ = ["comparisons"]

OURS, CONNECTOR, PARQUET = "Compactory", "Spark's connector, from_json", "broadcast join on Parquet"
_ROWS_OF_ENTRY = 5


def comparisons(terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"spark-read": _read, "spark-enrich": partial(_enrich, terms.entries * _ROWS_OF_ENTRY)}


def _read(stage: Stage) -> Measured:
    entries = stage.terms.entries
    topic = stage.topic(entries, 4)
    commands = {
        OURS: python("spark.read", stage.kafka, topic, "ours"),
        CONNECTOR: python("spark.read", stage.kafka, topic, "connector"),
    }
    taken = stage.alternate(commands, warm=False)
    what = f"{count(entries)} records as a DataFrame, count, then typed, groupBy"
    peer = (CONNECTOR, CONNECTOR)
    found = [
        beside(taken, f"{what}, whole process", OURS, peer, _whole, wanted=Wanted(AT_LEAST, 1)),
        beside(taken, f"{what}, without Spark's start", OURS, peer, _steps, figure="work_seconds"),
        beside(taken, f"{what}, again", OURS, peer, _again, figure="again_seconds"),
    ]
    return Measured(found, taken.rounds)


def _enrich(rows: int, stage: Stage) -> Measured:
    topic = stage.topic(stage.terms.entries, 4)
    with stage.folder() as folder:
        commands = {
            OURS: python("spark.enrich", stage.kafka, topic, "ours", folder, rows),
            PARQUET: python("spark.enrich", stage.kafka, topic, "parquet", folder, rows),
        }
        taken = stage.alternate(commands, warm=False)
    what = f"{count(rows)} rows enriched by {count(stage.terms.entries)} entries"
    peer = (PARQUET, PARQUET)
    found = [
        beside(taken, what, OURS, peer, _steps, figure="work_seconds", wanted=Wanted(AT_LEAST, 0.77)),
        beside(taken, f"{what}, again", OURS, peer, _again, figure="again_seconds"),
    ]
    return Measured(found, taken.rounds)


def _whole(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'seconds'):.1f} s"


def _steps(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'work_seconds'):.1f} s"


def _again(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'again_seconds'):.1f} s"
