"""The phases of a topic, without Kafka: which moves are legal, and what they mean for the store and its waiters."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable

import pytest

from compactory import Partition, StoreState
from compactory.ingest.progress import Progress
from compactory.ingest.topic_progress import MOVES, Phase, TopicProgress
from compactory.records import Rebuild, RebuildCause
from compactory.storage.checkpoint import Checkpoint

PART = Partition("t", 0)
CREATED_AGAIN = Rebuild(RebuildCause.RECREATED, "it was created again")
KEPT = Checkpoint(topic_id="id", cluster_id="c", definition="d", positions={0: 5}, complete=True)


def loading() -> Progress:
    """Return the progress of a store that has begun to read one topic, whose partition goes from 0 to 10."""
    progress = Progress(["t"])
    progress.move(StoreState.LOADING)
    discover(progress)
    return progress


def discover(progress: Progress) -> None:
    progress.add_partitions({PART: 0}, {PART: 10}, progress.generations(), {"t": "id"})


def phase(progress: Progress) -> Phase:
    return progress.topics["t"].phase


def following() -> Progress:
    progress = loading()
    progress.advance([(PART, 10)])
    progress.finish("t")
    progress.serve()
    return progress


def from_checkpoint() -> Progress:
    progress = Progress(["t"])
    progress.move(StoreState.LOADING)
    progress.resume("t", KEPT, serve=True)
    progress.serve()
    return progress


def test_only_legal_moves_are_made() -> None:
    """A call in the wrong order fails, instead of answers from the wrong tables."""
    assert MOVES.keys() == set(Phase)
    for former, phase in itertools.product(Phase, Phase):
        topic = TopicProgress(0.0, former)
        if phase in MOVES[former]:
            topic.enter(phase)
            assert topic.phase is phase
        else:
            with pytest.raises(AssertionError):
                topic.enter(phase)


def test_a_demand_hides_positions_and_is_stale_at_once() -> None:
    """Guarantee 2: from the demand on until the new generation is served, whether the reader has begun it or not."""
    progress = following()
    assert (progress.state, progress.positions(), progress.age("t") < 5) == (StoreState.READY, {PART: 10}, True)
    progress.demand("t", CREATED_AGAIN)
    assert progress.state is StoreState.STALE
    assert (progress.positions(), progress.stale()) == ({}, {"t": CREATED_AGAIN.detail})
    assert not progress.is_complete("t")
    progress.begin_rebuild("t")
    assert (phase(progress), progress.reading_positions(), progress.state) == (Phase.REBUILDING, {}, StoreState.STALE)
    discover(progress)
    progress.advance([(PART, 10)])
    assert (progress.positions(), progress.is_complete("t")) == ({}, True)
    progress.finish("t")
    assert (progress.state, progress.positions(), progress.stale()) == (StoreState.READY, {PART: 10}, {})


def test_a_rebuild_while_the_store_loads_serves_nothing() -> None:
    """Guarantee 1: a topic that was complete already begins again like the others."""
    progress = loading()
    progress.advance([(PART, 10)])
    progress.finish("t")
    progress.demand("t", CREATED_AGAIN)
    progress.begin_rebuild("t")
    assert (phase(progress), progress.state, progress.stale()) == (Phase.LOADING, StoreState.LOADING, {})
    assert progress.age("t") == float("inf")


def test_what_was_kept_is_stale_until_it_is_caught_up() -> None:
    """Guarantee 2: also where a topic that was gone is back meanwhile."""
    progress = from_checkpoint()
    assert progress.state is StoreState.STALE
    progress.note_absent(["t"])
    progress.note_absent([])
    assert "not caught up" in progress.stale()["t"]
    discover(progress)
    progress.hold("t", "0 of 7 records usable")
    assert progress.stale() == {"t": "0 of 7 records usable"}
    progress.finish("t")
    assert progress.state is StoreState.READY


@pytest.mark.parametrize("begin", [from_checkpoint, following])
def test_a_rebuild_that_begins_while_the_store_closes(begin: Callable[[], Progress]) -> None:
    """The reader may be at it: it ends in order, and nothing turns into a failure."""
    progress = begin()
    progress.demand("t", CREATED_AGAIN)
    progress.move(StoreState.CLOSED)
    progress.begin_rebuild("t")
    assert (phase(progress), progress.state) == (Phase.REBUILDING, StoreState.CLOSED)


def test_partitions_that_come_while_the_reader_looks() -> None:
    """Guarantee 7: discovery adds them at any moment, which the reader must survive."""
    progress = loading()
    stopped = threading.Event()

    def add_many() -> None:
        for number in itertools.count(1):
            if stopped.is_set() or number > 20_000:
                return
            part = Partition("t", number)
            progress.add_partitions({part: 0}, {part: 0}, progress.generations(), {})

    discovering = threading.Thread(target=add_many)
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns in the midst of a loop, too
    discovering.start()
    try:
        progress.advance([(PART, 10)])
        while discovering.is_alive() and len(progress.reading_positions()) < 3000:
            assert progress.is_complete("t")
            assert progress.checkpointed("t")[0][PART.partition] == 10
            assert progress.missed_tombstones("t", 1.0) is None
    finally:
        stopped.set()
        discovering.join()
        sys.setswitchinterval(switch_interval)


def test_a_topic_that_is_found_at_last_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 1: the stall time-out begins when a topic that was waited for is there, not before."""
    offset_seconds = 0.0
    monkeypatch.setattr("compactory.ingest.progress.clock", lambda: time.monotonic() + offset_seconds)
    progress = loading()
    progress.note_missing(["u"])
    offset_seconds = 100.0
    progress.note_missing([])

    def tick(_progress: object) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):  # and no StartTimeout
        progress.wait_loaded(30.0, None, 0.0, tick, every=0.01)
