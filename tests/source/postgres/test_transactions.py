"""A transaction that stays open: who it is, for how long, what it costs, and that its end is all that is needed."""

from __future__ import annotations

import psycopg
import pytest

from compactory_connectors.source.polling import table_reader
from compactory_connectors.source.postgres import transactions as floor
from compactory_connectors.source.runtime.worker import SourceWorker
from compactory_connectors.source.status.status import SourceState, SourceStatus
from tests.source.conftest import Bench
from tests.source.workload import wait_until


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and find everything worth a word."""
    monkeypatch.setattr(floor, "EVERY", 0.1)
    monkeypatch.setattr(floor, "NOTICED", 0.0)


def test_a_transaction_that_stays_open_is_named_with_its_age(bench: Bench) -> None:
    """Guarantee 12: pid, user, application, when it began and last asked for something; not what."""
    bench.add("T1")
    running = bench.start()
    with psycopg.connect(bench.url, application_name="billing") as writer:
        writer.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('secret', 'A')")
        pid = writer.info.backend_pid
        wait_until(lambda: running.source.status().open_transaction, what="the transaction")
        open_transaction = running.source.status().open_transaction
        assert open_transaction is not None
        assert (open_transaction.pid, open_transaction.user, open_transaction.application, open_transaction.state) == (
            pid, "postgres", "billing", "idle in transaction")  # fmt: skip
        assert "secret" not in str(open_transaction) + str(SourceWorker(running.source, lambda: True).status())
        samples = {metric.name: metric.samples for metric in SourceWorker(running.source, lambda: True).metrics()}
        assert samples["compactory_source_open_transaction_seconds"][bench.prefix,] > 0
        writer.commit()
    bench.wait_for_records(2)
    wait_until(lambda: running.source.status().open_transaction is None, what="its end to be seen")


def test_a_prepared_transaction_is_named(bench: Bench) -> None:
    running = bench.start()
    with psycopg.connect(bench.url) as writer:
        writer.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'A')")
        writer.execute("PREPARE TRANSACTION 'forgotten-1'")
    try:
        wait_until(lambda: running.source.status().open_transaction, what="the transaction")
        assert "prepared transaction 'forgotten-1' of user postgres" in str(running.source.status().open_transaction)
    finally:
        bench.sql.execute("COMMIT PREPARED 'forgotten-1'")
    bench.wait_for_records(1)


def test_a_role_that_is_shown_little_measures_by_itself(bench: Bench) -> None:
    name = f"shy_{bench.prefix.strip('-').replace('-', '_')}"
    bench.sql.execute(f"CREATE ROLE {name} LOGIN; GRANT SELECT ON terminal_acquirer TO {name}")
    place = bench.connector().connection
    shy = type(place)(dict(place.conninfo) | {"user": name})
    running = bench.start(connection=shy)
    try:
        with psycopg.connect(bench.url, application_name="billing") as writer:
            writer.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'A')")
            wait_until(lambda: running.source.status().open_transaction, what="the transaction")
            open_transaction = running.source.status().open_transaction
            assert open_transaction is not None
            assert (open_transaction.pid, open_transaction.since is not None) == (writer.info.backend_pid, True)
            assert "state not shown to us" in str(open_transaction)
        bench.wait_for_records(1)
    finally:
        running.stop()
        bench.sql.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_what_is_remembered_is_counted_and_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 12: at the bound the table waits, says for whom, and goes on by itself at the end; nothing is lost."""
    monkeypatch.setattr(table_reader, "_MOST_SEEN", 50)
    bench.add("T0")
    running = bench.start()
    bench.wait_for_records(1)
    with psycopg.connect(bench.url, application_name="billing") as writer:
        writer.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('old', 'A')")
        bench.add(*(f"T{number}" for number in range(1, 60)))
        bench.wait_for_records(51)  # or more: it looks between these commits, too
        bench.add("U")
        wait_until(lambda: state(running.source.status()) is SourceState.HELD, what="HELD")
        (shown,) = running.source.status().tables
        assert 50 <= shown.remembered_transactions <= 61  # whatever else the server ran counts as well
        assert f"pid {writer.info.backend_pid} (user postgres, application billing" in (shown.detail or "")
        sent, word = len(bench.records()), shown.current_at
        bench.add(*(f"U{number}" for number in range(49)))
        assert len(bench.records()) == sent
        assert running.source.status().tables[0].current_at == word
        writer.commit()
    assert len(bench.wait_for_records(111)) == 111
    wait_until(lambda: state(running.source.status()) is SourceState.RUNNING, what="RUNNING")
    bench.add("last")
    wait_until(lambda: running.source.status().tables[0].remembered_transactions == 0, what="forgetting")


def state(status: SourceStatus) -> SourceState:
    return status.tables[0].state if status.tables else SourceState.STARTING


def test_a_transaction_that_only_reads_holds_nothing_back(bench: Bench) -> None:
    """Nor does one of a replica: the floor is that of ids, not of VACUUM."""
    running = bench.start()
    with psycopg.connect(bench.url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1 FROM terminal_acquirer")
        bench.add("T1", "T2")
        bench.wait_for_records(2)
        wait_until(lambda: state(running.source.status()) is SourceState.RUNNING, what="RUNNING")
        assert running.source.status().open_transaction is None
