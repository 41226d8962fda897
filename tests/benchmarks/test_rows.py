"""What rows say of figures."""

from __future__ import annotations

import pytest

from benchmarks.rows import AT_LEAST, AT_MOST, Figures, Wanted, beside, plain

PEER = ("peer", "the peer")


def figures(**rounds) -> Figures:
    return Figures(rounds, {"gone": "not here"})


def described(taken: Figures, name: str) -> str:
    return f"of {name}"


def test_a_ratio_is_the_median_of_the_rounds_and_not_that_of_the_medians() -> None:
    taken = figures(
        ours=[{"seconds": 1}, {"seconds": 2}, {"seconds": 4}], peer=[{"seconds": 2}, {"seconds": 2}, {"seconds": 16}]
    )
    assert taken.ratio("ours", "peer") == 2.0
    assert taken.median("peer", "seconds") == 2.0


@pytest.mark.parametrize(
    ("figure", "ours", "theirs", "ratio", "wins"),
    [
        ("seconds", 1.0, 3.0, 3.0, True),
        ("seconds", 3.0, 1.5, 0.5, False),
        ("rate", 30.0, 10.0, 3.0, True),
        ("raw_rate", 10.0, 30.0, 1 / 3, False),
        ("rss_mb", 100.0, 200.0, 0.5, True),
        ("publish_p50_ms", 2.0, 1.0, 2.0, False),
    ],
)
def test_more_speed_and_less_memory_win(figure: str, ours: float, theirs: float, ratio: float, wins: bool) -> None:
    taken = figures(ours=[{figure: ours}], peer=[{figure: theirs}])
    row = beside(taken, "what", "ours", PEER, described, figure=figure)
    assert row.ratio == pytest.approx(ratio)
    assert (row.wins, row.met, row.wanted) == (wins, None, "")
    assert (row.figure, row.beside) == ("of ours", "the peer of peer")


@pytest.mark.parametrize(("bound", "met"), [(2.0, True), (2.1, False)])
def test_a_floor_is_one_on_the_ratio(bound: float, met: bool) -> None:
    taken = figures(ours=[{"seconds": 1.0}], peer=[{"seconds": 2.0}])
    row = beside(taken, "what", "ours", PEER, described, wanted=Wanted(AT_LEAST, bound))
    assert (row.met, row.wanted) == (met, f"≥ {bound:g}")


def test_a_ceiling_is_one_on_ours_over_theirs() -> None:
    taken = figures(ours=[{"rss_mb": 110.0}], peer=[{"rss_mb": 100.0}])
    row = beside(taken, "what", "ours", PEER, described, figure="rss_mb", wanted=Wanted(AT_MOST, 1.0))
    assert (row.met, row.wins) == (False, False)


def test_a_bound_may_be_one_on_a_figure_in_its_unit() -> None:
    taken = figures(ours=[{"seconds": 0.4}])
    (row,) = plain(taken, "what", "ours", described, figure="seconds", wanted=Wanted(AT_MOST, 0.5, "s"))
    assert (row.met, row.wanted) == (True, "≤ 0.5 s")


@pytest.mark.parametrize(("name", "peer"), [("ours", "gone"), ("gone", "peer")])
def test_what_could_not_be_run_is_neither_met_nor_missed(name: str, peer: str) -> None:
    taken = figures(ours=[{"seconds": 1.0}], peer=[{"seconds": 1.0}])
    row = beside(taken, "what", name, (peer, "the peer"), described, wanted=Wanted(AT_LEAST, 2.0))
    assert (row.figure, row.met, row.wins, row.ratio) == ("not measured: not here", None, None, None)
    assert plain_row(taken).figure == "not measured: not here"


def plain_row(taken: Figures):
    (row,) = plain(taken, "what", "gone", described)
    return row
