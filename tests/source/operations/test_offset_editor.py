"""Edits of offsets beside sources that are not seen, and the decisions behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import psycopg
import pytest

from compactory.errors import CompactoryError, LeaseLost
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.source.offsets.offset import SourceOffset
from compactory_connectors.source.offsets.stored_offsets import StoredOffset
from compactory_connectors.source.offsets.topics import OFFSETS_TOPIC, stored_values
from compactory_connectors.source.operations.offset_admin import OffsetAdmin
from compactory_connectors.source.operations.offset_edit import OffsetChange, edit_offsets, new_edit
from compactory_connectors.source.status.status import SourceState
from tests.source.conftest import Bench
from tests.source.workload import wait_until


def forget(stored: Sequence[StoredOffset]) -> list[OffsetChange]:
    return [OffsetChange(key=item.key, table=item.table, topic=None, previous=item, offset=None) for item in stored]


def test_a_source_that_waits_for_postgres_goes_on_from_the_edited_offset(
    bench: Bench, postgres_server: PostgresServer
) -> None:
    """Guarantee 11: nobody sees it, but it is fenced, and reads the offsets again when it comes back."""
    bench.add("T1", "T2")
    running = bench.start()
    bench.wait_for_records(2)
    database = bench.url.rsplit("/", 1)[1]
    with psycopg.connect(postgres_server.url(), autocommit=True) as server:
        server.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])
        running.wait_for(SourceState.WAITING)
        assert len(edit_offsets(bench.connector(), bench.kafka, forget, new_edit("reset"), lambda: None)) == 1
        server.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")
    assert len(bench.wait_for_records(4)) == 4
    running.stop()
    assert all(SourceOffset.loads(value).seen_snapshot for value in ours(bench).values())


def test_who_takes_over_while_an_edit_is_decided_wins(bench: Bench) -> None:
    """A source that starts just then fences the edit, and nothing of it is written."""
    bench.add("T1")
    bench.once()
    before = ours(bench)
    rival = Publisher(bench.kafka, bench.prefix, OFFSETS_TOPIC)

    def decide(stored: Sequence[StoredOffset]) -> list[OffsetChange]:
        rival.open()
        return forget(stored)

    with pytest.raises(LeaseLost):
        edit_offsets(bench.connector(), bench.kafka, decide, new_edit("reset"), lambda: None)
    rival.close()
    assert ours(bench) == before


def test_all_tables_change_or_none(bench: Bench) -> None:
    """A check that fails at the last moment, when sources are fenced already."""
    bench.add("T1")
    bench.sql.execute("CREATE TABLE other (LIKE terminal_acquirer INCLUDING ALL)")
    listed = bench.connector().selection.listed
    selection = replace(bench.connector().selection, listed=(*listed, replace(listed[0], name="other")))
    bench.once(selection=selection)
    before = ours(bench)
    assert len(before) == 2

    def refuse() -> None:
        raise CompactoryError("not now")

    with pytest.raises(CompactoryError, match="not now"):
        edit_offsets(bench.connector(), bench.kafka, forget, new_edit("reset"), refuse)
    assert ours(bench) == before
    assert len(edit_offsets(bench.connector(), bench.kafka, forget, new_edit("reset"), lambda: None)) == len(before)
    assert ours(bench) == {}


def test_an_edit_without_transactions(bench: Bench) -> None:
    bench.add("T1")
    bench.once(transactions=False)
    connector = replace(bench.connector(), transactions=False)
    with OffsetAdmin.open(connector, bench.kafka) as admin:
        assert len(admin.write(partial(admin.decide_reset, ()), new_edit("reset"), force=False)) == 1
    assert ours(bench) == {}
    bench.once(transactions=False)
    wait_until(lambda: len(bench.records()) == 2, what="the second load")


def ours(bench: Bench) -> dict[bytes, bytes]:
    """The bench's own offsets."""
    return {key: value for key, value in stored_values(bench.kafka).items() if bench.prefix.encode() in key}
