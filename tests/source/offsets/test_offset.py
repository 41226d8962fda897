"""The seen snapshot of a poll and the offset that keeps it, as pure data."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.source.offsets.offset import SEEN_LIMIT, SourceOffset, offset_key
from compactory_connectors.source.offsets.offset_parts import (
    Cursor,
    Identity,
    PartialPoll,
    Phase,
    ResendReason,
    RowPhase,
    SeenSnapshot,
)
from tests.source.harness import seen_above, widen

HERE = Identity(
    system_identifier="77",
    timeline=1,
    postmaster_start="2026-01-01 00:00:00+00",
    statistics_start="2025-12-31 00:00:00+00",
    table_oid=16385,
)


@given(st.integers(3, 1 << 40), st.integers(1, (1 << 31) - 1))
def test_widen_survives_wrap_around(xmax: int, distance: int) -> None:
    """Guarantee 8: 32-bit ids keep their place when the counter passes 2³²."""
    wide = xmax - distance
    if wide >= 0:
        assert widen(wide % (1 << 32), xmax) == wide


@given(st.integers(3, 1 << 40), st.lists(st.integers(0, 1000), unique=True, max_size=8))
def test_snapshot_text_round_trip(xmin: int, gaps: list[int]) -> None:
    xip = tuple(sorted(xmin + gap for gap in gaps))
    snapshot = Snapshot(xmin, xmin + 1001, xip)
    assert Snapshot.parse(str(snapshot)) == snapshot


def test_horizon_keeps_only_ids_that_the_floor_does_not_cover() -> None:
    before = seen_above(Snapshot(100, 120), [99, 100, 110])
    assert before.seen == {100, 110}
    assert seen_above(Snapshot(105, 130, (105,)), [112], before.seen or ()).seen == {110, 112}


def offset(**changes: object) -> SourceOffset:
    base = SourceOffset(
        identity=HERE,
        shape="columns and triggers",
        phase=Phase.STEADY,
        seen_snapshot=SeenSnapshot(Snapshot(100, 120, (100,)), frozenset({101})),
        durable=SeenSnapshot(Snapshot(90, 90)),
        partial_polls=(PartialPoll(SeenSnapshot(Snapshot(100, 130)), RowPhase.LIVING, ("2026-01-01 00:00:00", "7")),),
        timestamp=1,
        timestamp_nanos=2,
        incrementing=3,
    )
    loading = {"phase": Phase.LOADING} if "seen_snapshot" in changes and changes["seen_snapshot"] is None else {}
    return replace(base, **changes, **loading)


def test_offset_round_trip() -> None:
    assert SourceOffset.loads(offset().dumps()) == offset()
    assert SourceOffset.loads(offset(seen_snapshot=None, durable=None, partial_polls=()).dumps()).seen_snapshot is None


def test_offset_has_the_fixed_fields() -> None:
    assert offset_key("terminals", "db", "public", "t") == b'["terminals",{"protocol":"1","table":"db.public.t"}]'
    text = offset().dumps().decode()
    for field in ("timestamp", "timestamp_nanos", "incrementing", "snapshot", "system_identifier", "timeline",
                  "postmaster_start", "table_oid"):  # fmt: skip
        assert f'"{field}":' in text


def test_a_long_list_of_seen_ids_is_not_written_and_its_rows_go_out_again() -> None:
    seen = frozenset(range(200, 201 + SEEN_LIMIT))
    kept = SourceOffset.loads(offset(seen_snapshot=SeenSnapshot(Snapshot(100, 1 << 20), seen)).dumps())
    assert kept.seen_snapshot == SeenSnapshot(Snapshot(100, 1 << 20), frozenset())
    assert kept.resend_reason is ResendReason.IDS


def test_offsets_with_many_pages_fit_into_a_message() -> None:
    """Killed again and again within one poll while many transactions ran: librdkafka refuses more than 1 MB."""
    first = 10_000_000_000
    seen_snapshot = SeenSnapshot(Snapshot(first, first + 100_000), frozenset(range(first, first + 19_000)))
    pages = tuple(
        PartialPoll(seen_snapshot, RowPhase.LIVING, ("2026-01-01 00:00:00", str(number))) for number in range(20)
    )
    assert len(offset(seen_snapshot=seen_snapshot, durable=seen_snapshot, partial_polls=pages).dumps()) < 900_000
    assert len(offset(seen_snapshot=seen_snapshot, durable=seen_snapshot).dumps()) < 900_000


@pytest.mark.parametrize(
    "elsewhere",
    [
        replace(HERE, timeline=2),
        replace(HERE, database_oid=5),
        replace(HERE, system_identifier="78"),
        replace(HERE, table_oid=16400),
    ],
)
def test_another_history_trusts_nothing(elsewhere: Identity) -> None:
    """Guarantee 8: after promotion, restore or a new table every row is sent and missing keys are swept."""
    moved = offset().for_server(elsewhere, Snapshot(500, 500))
    assert (moved.seen_snapshot, moved.durable, moved.partial_polls, moved.sweep) == (None, None, (), True)
    assert moved.identity == elsewhere


CRASHED = replace(HERE, statistics_start="2026-01-02 00:00:00+00")


def test_a_crash_takes_back_nothing_that_was_flushed() -> None:
    """Guarantee 8: only ids that the durable seen snapshot does not cover may be given out again."""
    moved = offset(written=7, flushed=7).for_server(CRASHED, Snapshot(95, 95), 7)
    assert moved.seen_snapshot == moved.durable == offset().durable
    assert (moved.partial_polls, moved.sweep, moved.phase, moved.resend_reason) == (
        (),
        False,
        Phase.STEADY,
        ResendReason.CRASH,
    )


def test_a_topic_that_can_not_be_compared_is_not_filled_again_after_each_crash() -> None:
    """Its records have no keys, or go to several topics: what was lost stays in it, and ids decide."""
    moved = offset(written=8, flushed=7).for_server(CRASHED, Snapshot(500, 500), 900, comparable=False)
    assert (moved.seen_snapshot, moved.sweep, moved.phase) == (offset().durable, False, Phase.STEADY)


def test_a_server_that_recovered_at_its_start_may_be_a_backup() -> None:
    """Guarantee 8: a base backup or a copy of the disk recovers like after a crash, and says that it is the same."""
    recovered = replace(CRASHED, postmaster_start="2026-01-02 00:00:00+00")
    moved = offset(written=7, flushed=7).for_server(recovered, Snapshot(500, 500), 900)
    assert (moved.seen_snapshot, moved.sweep, moved.phase, moved.resend_reason) == (
        None,
        True,
        Phase.COMPARING,
        ResendReason.CRASH,
    )


@pytest.mark.parametrize("changes", [{"written": 8, "flushed": 7}, {"durable": None}, {"seen_snapshot": None}])
def test_what_a_crash_may_have_taken_back_is_compared(changes: dict[str, object]) -> None:
    """Guarantee 8: an older version of a row comes back with its old xmin, and a lost row leaves its key."""
    moved = offset(**changes).for_server(CRASHED, Snapshot(500, 500), 900)
    assert (moved.seen_snapshot, moved.durable, moved.partial_polls) == (None, None, ())
    assert (moved.sweep, moved.phase, moved.resend_reason) == (True, Phase.COMPARING, ResendReason.CRASH)


def test_a_server_that_was_shut_down_in_order_goes_on() -> None:
    restarted = replace(HERE, postmaster_start="2026-01-02 00:00:00+00")
    unsettled = offset(written=8, flushed=7)
    assert unsettled.for_server(restarted, Snapshot(130, 140), 9) == replace(unsettled, identity=restarted)


@given(
    now=st.tuples(st.integers(80, 140), st.integers(0, 20)),
    sent=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    where=st.sampled_from([HERE, CRASHED, replace(HERE, postmaster_start="later"), replace(HERE, timeline=2)]),
)
def test_whatever_server_is_found_nothing_of_another_history_is_trusted(
    now: tuple[int, int], sent: tuple[int, int], where: Identity
) -> None:
    """Guarantee 8: a seen snapshot is kept only where its ids and its WAL are those of the server that is there."""
    (counter, wal), (written, flushed) = now, sent
    known = offset(written=written, flushed=flushed, partial_polls=())
    moved = known.for_server(where, Snapshot(counter, counter), wal)
    assert moved.identity == where
    if moved.seen_snapshot is None:
        assert moved.phase is Phase.COMPARING
        assert moved.sweep
        return
    assert where.same_history(known.identity)
    assert wal >= flushed
    assert moved.seen_snapshot.snapshot.xmax <= counter
    if where is CRASHED:
        assert written <= flushed
        assert moved.seen_snapshot == known.durable


def test_a_counter_that_runs_behind_trusts_nothing() -> None:
    moved = offset(durable=offset().seen_snapshot).for_server(HERE, Snapshot(50, 50))
    assert moved.seen_snapshot is None
    assert moved.sweep


def test_stamps_are_not_trusted_over_a_change_of_triggers() -> None:
    """Guarantee 8: until the next seen snapshot the system column decides, from the snapshot on."""
    stamped = offset(
        seen_snapshot=SeenSnapshot(Snapshot(100, 120)),
        partial_polls=(PartialPoll(SeenSnapshot(Snapshot(100, 130)), RowPhase.LIVING, ("", "7")),),
    )
    assert stamped.for_shape("columns and triggers") == stamped
    moved = stamped.for_shape("other triggers")
    assert moved.seen_snapshot == SeenSnapshot(Snapshot(100, 120), frozenset())
    assert moved.durable == SeenSnapshot(Snapshot(90, 90), frozenset())
    assert moved.partial_polls[0].seen_snapshot.seen == frozenset()
    assert offset().for_shape("other triggers").seen_snapshot == offset().seen_snapshot


def test_the_same_server_goes_on() -> None:
    assert offset().for_server(HERE, Snapshot(130, 140)) == offset()


def test_attached_partitions_are_sent_whole_and_detached_ones_swept() -> None:
    """Guarantee 8: an attached partition's rows are older than any snapshot; a kill keeps what is still to be sent."""
    known = offset(partitions=(1, 2))
    attached = known.for_partitions((1, 2, 3))
    assert (attached.new_partitions, attached.partitions, attached.sweep) == ((3,), (1, 2, 3), False)
    assert not attached.partial_polls, "rows of the new partition may sort before what was sent"
    assert known.for_partitions((1, 2)).partial_polls == known.partial_polls
    resumed = SourceOffset.loads(attached.dumps()).for_partitions((1, 2, 3))
    assert resumed.new_partitions == (3,)
    swapped = resumed.for_partitions((1, 3, 4))
    assert (swapped.new_partitions, swapped.sweep) == ((3, 4), True)
    assert offset(seen_snapshot=None).for_partitions((1, 2)).new_partitions == ()


@pytest.mark.parametrize(
    "phase",
    [
        {"phase": Phase.COMPARING, "seen_snapshot": SeenSnapshot(Snapshot(100, 120))},
        {"phase": Phase.LOADING, "seen_snapshot": SeenSnapshot(Snapshot(100, 120))},
        {"phase": Phase.REWINDING},
        {"phase": Phase.STEADY, "rewind": Cursor(timestamp=1)},
    ],
)
def test_no_offset_is_in_two_phases(phase: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="another phase"):
        SourceOffset(identity=HERE, **phase)
