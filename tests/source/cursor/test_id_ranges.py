"""Ranges of sent ids against a plain set of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compactory_connectors.source.cursor.id_ranges import IdRanges

IDS = st.sets(st.integers(-50, 200), max_size=60)


@given(st.lists(IDS, max_size=5))
def test_what_was_added_is_in_and_nothing_else(batches: list[set[int]]) -> None:
    ids, plain = IdRanges(), set[int]()
    for batch in batches:
        ids, plain = ids.adding(batch), plain | batch
    assert {number for number in range(-60, 210) if number in ids} == plain
    assert ids.highest == (max(plain) if plain else None)
    gaps = {
        n for low, high in ids.gaps() for n in range(-60 if low is None else low + 1, 210 if high is None else high)
    }
    assert gaps == set(range(-60, 210)) - plain
    assert IdRanges.read(ids.fields()) == ids


@given(IDS, IDS)
def test_a_crash_takes_back_what_was_not_flushed(safe: set[int], lost: set[int]) -> None:
    """Ids that were sent before and again count as lost: sent twice is better than never."""
    ids = IdRanges().adding(safe)
    ids = ids.flushed(ids.spans).adding(lost).after_crash()
    assert {number for number in range(-60, 210) if number in ids} == safe - lost
    assert ids.unflushed == ()


@given(IDS, st.lists(st.tuples(st.integers(-60, 210), st.integers(0, 40)), max_size=8))
def test_flushing_any_spans_leaves_the_rest(sent: set[int], flushed: list[tuple[int, int]]) -> None:
    spans = [(low, low + width) for low, width in flushed]
    left = IdRanges().adding(sent).flushed(spans).unflushed
    safe = {number for low, high in spans for number in range(low, high + 1)}
    assert {number for low, high in left for number in range(low, high + 1)} == sent - safe
    assert list(left) == sorted(left)


@given(IDS, st.integers(-60, 210), st.integers(1, 10), st.integers(1, 20))
def test_trimming_gives_up_the_oldest_gaps_and_no_sent_id(ids: set[int], settled: int, kept: int, most: int) -> None:
    before = IdRanges().adding(ids)
    after = before.trimmed(settled, kept=kept, most=most)
    assert all(number in after for number in ids)
    assert len(after.spans) <= most
    newest = sorted(number for number in range(settled + 1, 210) if number not in before)
    if len(before.spans) <= most:
        assert all(number not in after for number in newest)


def test_marks_settle_when_their_transactions_have_ended() -> None:
    ids = IdRanges().adding([1, 5]).marked(100).adding([9]).marked(120).adding([20]).marked(130)
    assert ids.marks == ((5, 100), (20, 130))
    assert ids.settled(99) == (ids, None)
    ids, settled = ids.settled(100)
    assert (ids.marks, settled) == (((20, 130),), 5)


def test_everything_up_to_an_id_counts_as_sent() -> None:
    ids = IdRanges.up_to(10).adding([11, 13])
    assert (ids.floor, ids.spans) == (11, ((13, 13),))
    assert -5 in ids
    assert 12 not in ids
