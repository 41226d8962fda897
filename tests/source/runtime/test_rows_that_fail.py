"""Rows, and tables, that fail in ways that nobody foresaw: errors of their own, which never stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.connect.transforms import SourceRecord
from compactory_connectors.source.polling import table_reader as polling
from compactory_connectors.source.status.status import SourceState
from tests.source.poller import KEYED
from tests.source.runtime.test_tables import Shop
from tests.source.workload import wait_until

CAST = {
    "transforms": f"{KEYED['transforms']},cast",
    "transforms.cast.type": "org.apache.kafka.connect.transforms.Cast$Value",
    "transforms.cast.spec": "name:int64",
}


def surrogate(record: SourceRecord) -> SourceRecord:
    """Give the row named bad a text that UTF-8 can't hold."""
    name = record.value["name"]
    return record.with_value(record.value | {"name": "\ud800" if name == "bad" else name})


def cycle(record: SourceRecord) -> SourceRecord:
    """Give the row named bad a value that contains itself."""
    value = dict(record.value)
    if value["name"] == "bad":
        value["name"] = value
    return record.with_value(value)


CAUSES: dict[str, tuple[dict[str, str], str, str]] = {
    "cast": (CAST, "7", "9" * 6000),
    "surrogate": ({"compactory.transform": f"{__name__}:surrogate"}, "good", "bad"),
    "cycle": ({"compactory.transform": f"{__name__}:cycle"}, "good", "bad"),
}
"""Settings, the name of a row that can be converted, and the name of one that can't."""


@pytest.fixture
def shop(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Shop]:
    """Tables ``t`` and ``other`` with a name for each row."""
    shop = Shop(database, kafka, f"{unique('m')}-")
    for name in ("t", "other"):
        shop.table(name)
        shop.sql.execute(f"ALTER TABLE {name} ADD name text")
    yield shop
    shop.close()


def start(shop: Shop, **changes: str) -> None:
    shop.start(**{name.replace(".", "__"): value for name, value in changes.items()})


def add(shop: Shop, table: str, number: int, name: str) -> None:
    shop.sql.execute(f"INSERT INTO {table} (id, name) VALUES (%s, %s)", [number, name])


@pytest.mark.parametrize("cause", CAUSES)
def test_a_row_that_raises_anything_is_skipped_where_that_is_allowed(shop: Shop, cause: str) -> None:
    settings, good, bad = CAUSES[cause]
    for number, name in enumerate((good, bad, good), 1):
        add(shop, "t", number, name)
    start(shop, **settings, **{"errors.tolerance": "all"})
    shop.wait_for("t", b"1", b"3")
    wait_until(lambda: (status := shop.status("t")) and status.skipped_total == 1, what="the skipped row in the status")


def test_a_row_that_raises_anything_stops_its_table_alone(shop: Shop) -> None:
    """Guarantee 12."""
    settings, good, bad = CAUSES["cycle"]
    add(shop, "t", 1, bad)
    add(shop, "other", 1, good)
    start(shop, **settings)
    wait_until(lambda: (status := shop.status("t")) and status.state is SourceState.FAILED, what="FAILED")
    assert "RecursionError" in (shop.status("t").detail or "")  # type: ignore[union-attr]
    add(shop, "other", 2, good)
    shop.wait_for("other", b"1", b"2")


def test_an_error_that_nobody_foresaw_stops_its_table_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 12: a mistake in the source's own code about one table; it goes on once that is gone."""
    cover = polling.OffsetBuilder.cover

    def failing(builder: polling.OffsetBuilder, *arguments: Any) -> Any:
        if builder.plan.name == "t":
            raise KeyError("secret value")
        return cover(builder, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(polling.OffsetBuilder, "cover", failing)
        add(shop, "t", 1, "n")
        add(shop, "other", 1, "n")
        start(shop)
        wait_until(lambda: (status := shop.status("t")) and status.state is SourceState.FAILED, what="FAILED")
        detail = shop.status("t").detail or ""  # type: ignore[union-attr]
        assert "unexpected error: KeyError" in detail
        assert "secret" not in detail
        shop.wait_for("other", b"1")
    shop.wait_for("t", b"1")


def test_text_that_is_not_utf8_stops_its_table_alone(
    postgres_server: PostgresServer, kafka: str, unique: Callable[[str], str]
) -> None:
    """A database without an encoding: Postgres checks what it sends, so nothing else but UTF-8 is ever published."""
    name = unique("db").replace("-", "_")
    with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        shop = Shop(postgres_server.url(name), kafka, f"{unique('m')}-")
        try:
            for table in ("t", "other"):
                shop.table(table)
                shop.sql.execute(f"ALTER TABLE {table} ADD name text")
                add(shop, table, 1, "n")
            shop.sql.execute("INSERT INTO t (id, name) VALUES (2, convert_from('\\x22636166e9', 'SQL_ASCII'))")
            start(shop, **{"errors.tolerance": "all"})
            wait_until(lambda: (status := shop.status("t")) and status.state is SourceState.FAILED, what="FAILED")
            assert "22021" in (shop.status("t").detail or "")  # type: ignore[union-attr]
            shop.wait_for("other", b"1")
        finally:
            shop.close()
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_removal_from_a_view_waits_for_a_row_whose_key_can_not_be_made(shop: Shop) -> None:
    """Guarantee 10: nothing sweeps the topic of a view, so the tombstone stays due until the row is repaired."""
    shop.sql.execute("ALTER TABLE t ADD alive bool NOT NULL DEFAULT true; CREATE VIEW seen AS SELECT * FROM t")
    shop.sql.execute("INSERT INTO t (id, name, changed) SELECT n, n, '2024-01-01' FROM generate_series(1, 40) n")
    shop.sql.execute("UPDATE t SET name = 'none' WHERE id = 40")
    key_by_name = {
        "transforms": "key,id,number",
        "transforms.key.fields": "name",
        "transforms.id.field": "name",
        "transforms.number.type": "org.apache.kafka.connect.transforms.Cast$Key",
        "transforms.number.spec": "int64",
        "table.include.list": r"public\.seen",
        "table.types": "VIEW",
        "validate.non.null": "false",
        "errors.tolerance": "all",
        "compactory.soft.delete.column": "alive",
    }
    start(shop, **key_by_name)
    keys = [b"%d" % number for number in range(1, 40)]
    shop.wait_for("seen", *keys)
    shop.sql.execute("UPDATE t SET alive = false, changed = '2024-01-02' WHERE id = 7")
    wait_until(lambda: (status := shop.status("seen")) and status.state is SourceState.FAILED, what="FAILED")
    assert "removals wait until" in (shop.status("seen").detail or "")  # type: ignore[union-attr]
    shop.sql.execute("UPDATE t SET name = '40' WHERE id = 40")
    shop.wait_for("seen", *keys, b"7")
