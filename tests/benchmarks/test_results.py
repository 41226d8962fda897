"""What was measured survives a run that was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.results import Results
from benchmarks.rows import Row
from benchmarks.stage import Measured, Terms

ROW = Row(what="what", figure="1 s", beside="the peer 2 s", ratio=2.0, wanted="≥ 1", met=True, wins=True)
MEASURED = Measured([ROW], {"ours": [{"seconds": 1.0}]})
CONDITIONS = {"at": "2026-01-02T03:04:05+0000"}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "out" / "results.jsonl")


def test_a_run_is_resumed_where_it_ended(results: Results) -> None:
    assert results.done(Terms()) == set()
    results.begin(CONDITIONS, Terms())
    results.add("one", MEASURED, (0.5, 1.5))
    assert results.done(Terms()) == {"one"}
    assert results.done(Terms.full()) == set()
    results.begin(CONDITIONS, Terms())
    assert results.done(Terms()) == set()


def test_the_newest_result_of_each_comparison_counts(results: Results) -> None:
    results.begin(CONDITIONS, Terms())
    results.add("one", MEASURED, (0, 0))
    results.add("two", MEASURED, (0, 0))
    results.begin(CONDITIONS | {"at": "2026-02-02T03:04:05+0000"}, Terms.full())
    results.add("one", Measured([], {}), (0, 0))
    latest = results.latest()
    assert latest["one"]["rows"] == []
    assert latest["one"]["run"]["at"].startswith("2026-02")
    assert latest["one"]["terms"]["rounds"] == Terms.full().rounds
    assert latest["two"]["rows"] == [ROW]
    assert latest["two"]["figures"] == {"ours": [{"seconds": 1.0}]}


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    results = Results(path)
    results.begin(CONDITIONS, Terms())
    results.add("one", MEASURED, (0, 0))
    path.write_text(path.read_text() + '{"comparison": "tw')
    assert set(results.latest()) == results.done(Terms()) == {"one"}
    results.add("three", MEASURED, (0, 0))
    assert set(results.latest()) == {"one", "three"}
