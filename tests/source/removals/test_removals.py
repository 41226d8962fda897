"""What would remove too much is held, and goes on when it is approved or the rows come back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from compactory_connectors.schema import Adoption, adopt, install
from compactory_connectors.source.config.connector import SoftDelete
from compactory_connectors.source.config.files import parse_connector
from compactory_connectors.source.config.selection import TableName, table_types
from compactory_connectors.source.polling.removal import ALL, FEW, Hold, hold_id, keys_needed, too_many
from compactory_connectors.source.status.status import SourceState, TableStatus
from tests.source.conftest import Bench, Running
from tests.source.poller import settings
from tests.source.workload import wait_until

ROWS = "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) SELECT 'T' || n, 'A' FROM generate_series(1, {}) n"


def living(bench: Bench) -> set[int]:
    """The keys that live in the topic."""
    newest = dict(bench.records())
    return {int(key) for key, value in newest.items() if value is not None}


def status(running: Running) -> TableStatus:
    (table,) = running.source.status().tables
    return table


def held(running: Running) -> Hold:
    """The removal that is held, once one is."""
    wait_until(lambda: any(table.removal for table in running.source.status().tables), what="a hold")
    found = status(running)
    assert found.state is SourceState.HELD
    assert found.removal is not None
    return found.removal


def adopted(bench: Bench, **changes: Any) -> None:
    """Adopt the bench's table."""
    bench.sql.execute("DROP TRIGGER stamp ON terminal_acquirer")
    with psycopg.connect(bench.url, autocommit=True) as connection:
        install(connection)
        adopt(connection, Adoption(table="terminal_acquirer", key=("terminal_id",), active="is_active", **changes))


@pytest.mark.parametrize(
    ("removed", "keys", "percent", "hold"),
    [
        (20, 20, 20, True),
        (FEW, 49, 20, True),
        (FEW, 50, 20, False),
        (FEW - 1, 10, 20, False),
        (ALL, ALL, 20, True),
        (ALL - 1, ALL - 1, 20, False),
        (200_001, 1_000_000, 20, True),
        (200_000, 1_000_000, 20, False),
        (1_000_000, 1_000_000, 100, False),
        (FEW, 1_000_000, 0, True),
        (1, 1_000_000, 0, False),
        (0, 0, 0, False),
    ],
)
def test_what_is_too_much(removed: int, keys: int, percent: int, hold: bool) -> None:
    """Guarantee 13: a share, and for small directories all of it; single keys may always go."""
    assert too_many(removed, keys, percent) is hold


def test_a_glance_at_what_is_left_agrees_with_the_count() -> None:
    """Guarantee 13: what a poll decides by the rows that are left is what a sweep decides by the keys there were."""
    for percent in (0, 1, 20, 50, 99, 100):
        for removed in range(40):
            enough = keys_needed(removed, percent) - removed
            for left in range(60):
                assert too_many(removed, removed + left, percent) is (left < enough)


def test_an_id_names_the_keys_whatever_their_order() -> None:
    assert hold_id([b"a", b"b"]) == hold_id([b"b", b"a"]) != hold_id([b"a", b"c"])


@pytest.mark.parametrize("as_it_is", [True, False], ids=["as-it-is", "adopted"])
def test_a_mass_deactivation_waits_and_the_rest_goes_on(bench: Bench, as_it_is: bool) -> None:
    """Guarantee 13: other changes of the table are published, a restart keeps the hold, an approval ends it."""
    bench.sql.execute(ROWS.format(40))
    if not as_it_is:
        adopted(bench)
    running = bench.start(soft_delete=True)
    bench.wait_for_records(40)
    with bench.sql.transaction():
        bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id <= 20")
        bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 30")
    found = held(running)
    assert (found.removed, found.keys, found.percent) == (20, 40, 50.0)
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 40")
    bench.add("new")
    wait_until(lambda: living(bench) == {*range(1, 40), 41}, what="a small removal and a new row")
    running.stop()

    running = bench.start(soft_delete=True)
    again = held(running)
    assert again.id == found.id
    running.source.orders.approve("public.terminal_acquirer", "of something else")
    bench.add("newer")
    wait_until(lambda: 42 in living(bench), what="a poll")
    assert set(range(1, 40)) <= living(bench)
    running.source.orders.approve("public.terminal_acquirer", again.id)
    wait_until(lambda: living(bench) == {*range(21, 40), 41, 42}, what="the removal")
    wait_until(lambda: status(running).state is SourceState.RUNNING, what="RUNNING")
    assert status(running).removal is None
    running.stop()
    bench.once(soft_delete=True)
    assert sum(value is None for _, value in bench.records()) == 21


def test_a_hold_ends_when_the_rows_come_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 13: and what is then left of the removal is small enough to go."""
    monkeypatch.setattr("compactory_connectors.source.removals.cleanup._SWEEP_AGAIN", 0.2)
    bench.sql.execute(ROWS.format(40))
    running = bench.start(soft_delete=True)
    bench.wait_for_records(40)
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false")
    assert held(running).removed == 40
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = true WHERE id > 5")
    wait_until(lambda: status(running).state is SourceState.RUNNING, what="RUNNING")
    wait_until(lambda: living(bench) == set(range(6, 41)), what="the rest of the removal")


def test_a_truncate_of_a_small_directory_is_held(bench: Bench) -> None:
    """Guarantee 13: twenty rows of which twenty vanish."""
    bench.sql.execute(ROWS.format(20))
    adopted(bench)
    running = bench.start()
    bench.wait_for_records(20)
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false")
    wait_until(lambda: len(bench.records()) == 40, what="deactivations, which are plain values here")
    bench.sql.execute("TRUNCATE terminal_acquirer")
    found = held(running)
    assert (found.removed, found.keys) == (20, 20)
    running.source.orders.approve("public.terminal_acquirer", found.id)
    wait_until(lambda: not living(bench), what="the removal")


def test_deletions_in_several_pages_are_counted_before_the_first_goes(bench: Bench) -> None:
    """Guarantee 13: no page of a removal gets through because it is small."""
    bench.sql.execute(ROWS.format(200))
    bench.once(soft_delete=True)
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id <= 100")
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id > 150")
    running = bench.start(soft_delete=True, batch_max_rows=20)
    assert held(running).removed == 100
    assert len(living(bench)) == 200
    assert len(bench.records()) == 250


def test_replacing_every_row_by_another_of_its_key_is_no_removal(bench: Bench) -> None:
    """Guarantee 10: old rows off, new rows on, in one transaction."""
    bench.sql.execute(ROWS.format(30))
    running = bench.start(soft_delete=True, **by_terminal(bench))
    bench.wait_for_records(30)
    with bench.sql.transaction():
        bench.sql.execute("UPDATE terminal_acquirer SET is_active = false")
        bench.sql.execute(ROWS.format(30).replace("'A'", "'B'"))
    bench.wait_for_records(60)
    bench.add("last")
    bench.wait_for_records(61)
    assert all(value is not None for _, value in bench.records())
    assert status(running).state is SourceState.RUNNING


def by_terminal(bench: Bench) -> dict[str, Any]:
    """What makes the terminal the key of the records."""
    changed = {"transforms.key.fields": "terminal_id", "transforms.id.field": "terminal_id"}
    written = settings(bench.url, "bulk") | changed
    return {"transforms": parse_connector(json.dumps(written), default_name="c", environment={}).transforms}


@pytest.mark.parametrize("percent", [50, 100])
def test_a_share_of_ones_own(bench: Bench, percent: int) -> None:
    """Guarantee 13: compactory.max.removed.percent."""
    bench.sql.execute(ROWS.format(40))
    bench.once(soft_delete=True)
    gone = 20 if percent == 50 else 40
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id <= %s", [gone])
    bench.once(soft_delete=True, max_removed_percent=percent)
    assert living(bench) == set(range(gone + 1, 41))


def test_deactivations_that_are_values_hold_the_whole_poll(bench: Bench) -> None:
    """Guarantee 13: a store takes them for deletions, and a value can't be left to a sweep."""
    bench.sql.execute(ROWS.format(40))
    values = SoftDelete("is_active", tombstone=False)
    running = bench.start(soft_delete=values)
    bench.wait_for_records(40)
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id <= 20")
    found = held(running)
    assert (found.removed, found.keys) == (20, 40)
    bench.add("new")
    polls = status(running).polls_total
    running.source.orders.approve("public.terminal_acquirer", "of something else")
    wait_until(lambda: not running.source.orders.needs_poll("public.terminal_acquirer"), what="another poll")
    assert (len(bench.records()), status(running).polls_total) == (40, polls)
    running.source.orders.approve("public.terminal_acquirer", found.id)
    bench.wait_for_records(61)
    wait_until(lambda: status(running).state is SourceState.RUNNING, what="RUNNING")


def test_a_view_is_held_as_a_whole_and_never_swept(bench: Bench) -> None:
    """Guarantee 13: what a view does not show may be meant to stay, so that an approval is of its poll alone."""
    bench.sql.execute(ROWS.format(40))
    bench.sql.execute("CREATE VIEW seen AS SELECT * FROM terminal_acquirer WHERE acquirer_id <> 'hidden'")
    selection = replace(bench.connector().selection, listed=(TableName(None, "seen"),), kinds=table_types("VIEW"))
    bench.topic = f"{bench.prefix}seen"
    running = bench.start(soft_delete=True, selection=selection, sweep_interval_ms=50)
    bench.wait_for_records(40)
    with bench.sql.transaction():
        bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'hidden' WHERE id > 20")
        bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id <= 10")
    found = held(running)
    running.source.orders.approve("public.seen", found.id)
    wait_until(lambda: living(bench) == set(range(11, 41)), what="the removal")
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 11")
    bench.wait_for_records(51)
    assert living(bench) == set(range(11, 41))
