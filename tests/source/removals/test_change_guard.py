"""A poll that would change too many values is held, and continues when it is approved or the rows are corrected."""

from __future__ import annotations

import pytest

from compactory_connectors.source.config.connector import Mode
from compactory_connectors.source.polling.removal import Hold
from compactory_connectors.source.runtime.worker import SourceWorker
from compactory_connectors.source.status.status import SourceState
from tests.source.conftest import Bench, Running
from tests.source.removals.test_removals import ROWS, adopted, held, status
from tests.source.workload import wait_until

TABLE = "public.terminal_acquirer"
RAISE = "UPDATE terminal_acquirer SET acquirer_id = 'WRONG' WHERE id <= {}"


def acquirers(bench: Bench) -> list[bytes]:
    """The values of the topic's keys 1 to 40, in the order of the keys."""
    newest = dict(bench.records())
    return [newest[b"%d" % number] or b"" for number in range(1, 41)]


def is_published(bench: Bench, changed: int) -> bool:
    return sum(b"WRONG" in value for value in acquirers(bench)) == changed


def start(bench: Bench, **changes: object) -> Running:
    bench.sql.execute(ROWS.format(40))
    running = bench.start(max_changed_percent=20, **changes)
    bench.wait_for_records(40)
    return running


@pytest.mark.parametrize("page", [7, 10_000], ids=["several-pages", "one-page"])
def test_a_change_of_many_values_waits_until_it_is_approved(bench: Bench, page: int) -> None:
    """Guarantee 13: nothing of the poll is published before, not even its first pages."""
    running = start(bench, batch_max_rows=page, sweep_interval_ms=200)  # sweeps do not end the hold
    bench.sql.execute(RAISE.format(20))
    hold = held(running)
    assert (hold.changed, hold.removed, hold.keys, hold.percent) == (20, 0, 40, 50.0)
    assert "compactory.max.changed.percent is 20" in (status(running).detail or "")
    assert len(bench.records()) == 40

    running.source.orders.approve(TABLE, "of something else")
    wait_until(lambda: not running.source.orders.needs_poll(TABLE), what="the order")
    assert len(bench.records()) == 40
    running.source.orders.approve(TABLE, hold.id)
    wait_until(lambda: is_published(bench, 20), what="the change")
    wait_until(lambda: status(running).state is SourceState.RUNNING, what="RUNNING")
    assert status(running).removal is None


def test_a_hold_ends_when_the_rows_are_corrected(bench: Bench) -> None:
    bench.sql.execute("DROP TRIGGER stamp ON terminal_acquirer")  # else a corrected row has another updated_date
    running = start(bench)
    bench.sql.execute(RAISE.format(20))
    former = held(running)
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 40")
    wait_until(lambda: held(running).changed == 21, what="one more change")
    assert held(running).id == former.id, "an approval stays valid while a few rows change"
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'A' WHERE id > 3 AND id <= 20")
    wait_until(lambda: is_published(bench, 3), what="the small change that is left")
    assert b'"B"' in acquirers(bench)[-1]
    wait_until(lambda: status(running).state is SourceState.RUNNING, what="RUNNING")
    bench.sql.execute(RAISE.format(20))
    assert held(running).changed == 17, "compared with the topic as it is now"


def test_new_rows_and_few_changes_pass(bench: Bench) -> None:
    running = start(bench)
    with bench.sql.transaction():
        bench.sql.execute(ROWS.format("1040").replace("generate_series(1,", "generate_series(41,"))
        bench.sql.execute(RAISE.format(8))
    bench.wait_for_records(1048)
    assert is_published(bench, 8)
    assert status(running).removal is None


def test_an_adopted_table_is_held_as_well(bench: Bench) -> None:
    """Guarantee 13: its poll opens the readers of its rows before it is known whether they are read twice."""
    bench.sql.execute(ROWS.format(40))
    adopted(bench)
    running = bench.start(max_changed_percent=20, batch_max_rows=7)
    bench.wait_for_records(40)
    bench.sql.execute(RAISE.format(20))
    hold = held(running)
    assert (hold.changed, len(bench.records())) == (20, 40)
    running.source.orders.approve(TABLE, hold.id)
    wait_until(lambda: is_published(bench, 20), what="the change")


def test_a_restart_keeps_the_hold(bench: Bench) -> None:
    running = start(bench)
    bench.sql.execute(RAISE.format(40))
    former = held(running)
    running.stop()
    running = bench.start(max_changed_percent=20)
    assert held(running).id == former.id
    assert len(bench.records()) == 40


def test_a_mode_without_row_versions_is_held_as_well(bench: Bench) -> None:
    """Mode bulk sends every row at each poll; only those whose value differs from the topic's count."""
    bench.sql.execute(ROWS.format(40))
    bench.once(mode=Mode.BULK)
    bench.once(mode=Mode.BULK, max_changed_percent=20)
    sent = len(bench.records())
    assert sent == 80
    bench.sql.execute(RAISE.format(20))
    running = bench.start(mode=Mode.BULK, max_changed_percent=20)
    assert held(running).changed == 20
    assert len(bench.records()) == sent


def test_values_of_a_hold_are_for_administrators(bench: Bench) -> None:
    running = start(bench)
    bench.sql.execute(RAISE.format(20))
    held(running)
    worker = SourceWorker(running.source, lambda: True)
    sample = worker.admin_status()["tables"][0]["removal"]["sample"]
    assert len(sample) == 5
    assert all('"A"' in change["old"] and '"WRONG"' in change["new"] for change in sample)
    shown = worker.status()["tables"][0]["removal"]
    assert shown["sample"] == [{"key": change["key"]} for change in sample]
    assert "WRONG" not in str(worker.status())
    metrics = {metric.name: metric.samples for metric in worker.metrics()}
    assert list(metrics["compactory_source_held_changes"].values()) == [20.0]


def test_a_share_of_a_hold() -> None:
    assert Hold(id="", keys=0).percent == 0.0
