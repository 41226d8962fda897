"""The report says what was reached, and what was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.__main__ import chosen, found
from benchmarks.plots import PLOTS, lines
from benchmarks.results import Results
from benchmarks.rows import Row
from benchmarks.stage import Measured, Terms

CONDITIONS = {
    "at": "2026-01-02T03:04:05+0000",
    "cores": 2,
    "memory_gb": 8,
    "processor": "a processor",
    "system": "Linux 6",
    "versions": {"Python": "3.11"},
}
GROWN = {"seconds": 0.5, "rss_mb": 50.0, "rate": 1e6}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    found = Results(tmp_path / "results.jsonl")
    found.begin(CONDITIONS, Terms())
    rows = [
        Row(what="met", figure="1 s", beside="peer 3 s", ratio=3.0, wanted="≥ 2", met=True, wins=True),
        Row(what="missed", figure="2 s", beside="peer 3 s", ratio=1.5, wanted="≥ 2", met=False, wins=True),
        Row(what="slower", figure="4 s", beside="peer 3 s", ratio=0.75, wins=False),
        Row(what="gone | away", figure="not measured: no Java", wanted="≥ 2"),
    ]
    found.add("bootstrap-1", Measured(rows, {}), (0.5, 1.25))
    for entries in (100_000, 10_000):
        found.add(f"growth-{entries}", Measured([], {"ours": [GROWN], "table": []}), (0.5, 7.5))
    return found


def test_losses_are_said_by_name(results: Results) -> None:
    text = report.text(results.latest(), plotted=False)
    assert text.startswith("# Benchmark report, 2026-01-02\n")
    assert "load average 0.5 to 7.5" in text
    assert "| missed | 2 s | peer 3 s | 1.50 | ≥ 2 | ✗ |" in text
    assert "gone \\| away" in text
    losses = text.partition("## Where it falls short")[2].partition("\n## ")[0]
    assert "missed" in losses
    assert "slower" in losses
    assert "met:" not in losses
    assert "gone" not in losses


def test_nothing_measured_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing was measured"):
        report.write(Results(tmp_path / "none.jsonl"))


def test_plots_show_what_there_is_in_order_of_size() -> None:
    growth = {100_000: {"ours": [GROWN], "table": []}, 10_000: {"ours": [GROWN, GROWN | {"rate": 3e6}]}}
    ready, _, gets = PLOTS
    assert lines(ready, growth) == {"ours": [(10_000, 0.5), (100_000, 0.5)]}
    assert lines(gets, growth) == {"ours": [(10_000, 2.0), (100_000, 1.0)]}


def test_comparisons_are_found_by_module_and_by_name() -> None:
    known = found(Terms.full())
    assert {"bootstrap", "disk", "lookups", "visibility", "growth", "http_lookups", "latency"} <= set(known)
    assert set(chosen(known, ["growth", "restart"])) == {
        "growth-10000",
        "growth-100000",
        "growth-1000000",
        "growth-10000000",
        "restart",
    }
    names = [name for module in known.values() for name in module]
    assert len(chosen(known, [])) == len(names) == len(set(names))
    with pytest.raises(KeyError, match="nonsense"):
        chosen(known, ["nonsense"])
