"""The metrics of a source in each state that it may be in. Pure."""

from __future__ import annotations

import math

import pytest

from compactory_connectors.source.offsets.stored_offsets import Target, TargetState
from compactory_connectors.source.polling.removal import Hold
from compactory_connectors.source.runtime.worker import source_metrics
from compactory_connectors.source.status.board import StatusBoard
from compactory_connectors.source.status.status import (
    HeartbeatStatus,
    Moment,
    SourceState,
    SourceStatus,
    TableStatus,
)

NOW = 1_700_000_000.0
NEVER = TableStatus(table="public.never", topic="")
POLLED = TableStatus(
    table="public.t", topic="t", state=SourceState.RUNNING, last_poll=NOW - 7, last_publish=NOW - 9, current_at=NOW - 3
)


def shown(state: SourceState, *tables: TableStatus, **fields: object) -> dict[str, dict[tuple[str, ...], float]]:
    status = SourceStatus(connector="c", state=state, detail=None, tables=tables, **fields)  # type: ignore[arg-type]
    found = {metric.name: dict(metric.samples) for metric in source_metrics(Moment(status, NOW, NOW - 100))}
    assert all(math.isfinite(value) and value >= 0 for samples in found.values() for value in samples.values())
    return {name.removeprefix("compactory_source_"): samples for name, samples in found.items()}


@pytest.mark.parametrize("state", sorted(set(SourceState) - {SourceState.HELD}, key=str))
def test_a_connector_that_never_saw_a_table_shows_its_state(state: SourceState) -> None:
    """Alerts tell "paused" from "gone" by it."""
    found = shown(state)
    assert [labels for labels, value in found["state"].items() if value] == [("c", state.value)]
    assert len(found["state"]) == len(SourceState) - 1
    assert found["paused_seconds"] == {("c",): 0}
    assert found["active"] == found["lag_seconds"] == found["table_state"] == {}


@pytest.mark.parametrize("state", sorted(set(SourceState) - {SourceState.HELD}, key=str))
def test_a_table_is_shown_in_the_state_of_its_connector(state: SourceState) -> None:
    found = shown(state, POLLED, NEVER)
    running = state is SourceState.RUNNING
    assert found["active"] == {("c", "public.t"): running, ("c", "public.never"): running}
    never = SourceState.STARTING.value if running else state.value
    assert set(found["table_state"]) == {("c", "public.t", state.value), ("c", "public.never", never)}
    ages = {("c", "public.t"): 3, ("c", "public.never"): 100}
    assert found["lag_seconds"] == ({} if state is SourceState.STANDBY else ages)
    assert found["last_poll_timestamp_seconds"] == {("c", "public.t"): NOW - 7}
    assert found["last_publish_timestamp_seconds"] == {("c", "public.t"): NOW - 9}


def test_what_a_pause_and_heartbeats_show() -> None:
    target_state = TargetState(target=Target.PAUSED, since=NOW - 50)
    beat = HeartbeatStatus(committed_at=NOW - 60, seconds=0.02)
    found = shown(SourceState.PAUSED, target_state=target_state, heartbeat=beat)
    assert found["paused_seconds"] == {("c",): 50}
    assert found["heartbeat_timestamp_seconds"] == {("c",): NOW - 60}
    assert found["heartbeat_seconds"] == {("c",): 0.02}
    assert shown(SourceState.PAUSED, target_state=TargetState(target=Target.PAUSED, since=NOW + 5))[
        "paused_seconds"
    ] == {("c",): 0}
    assert shown(SourceState.STANDBY, heartbeat=beat)["heartbeat_seconds"] == {}, "it was the holder once"


def test_the_time_of_a_state_is_that_of_its_beginning() -> None:
    board = StatusBoard("c")
    board.set_state(SourceState.WAITING, "one")
    since = board.picture().since
    board.set_state(SourceState.WAITING, "two")
    assert (board.picture().since, board.picture().detail) == (since, "two")
    board.set_state(SourceState.RUNNING)
    assert board.picture().since > since  # type: ignore[operator]


def test_what_an_earlier_session_held_is_not_shown_before_it_is_found_again() -> None:
    board = StatusBoard("c")
    board.add_table("public.t", "t", adopted=False)
    board.hold("public.t", "a poll would remove 9 of 9 keys", Hold(id="x", keys=9, removed=9))
    board.add_table("public.t", "t", adopted=False)
    [table] = board.picture().tables
    assert (table.state, table.held_since, table.removal) == (SourceState.STARTING, None, None)
