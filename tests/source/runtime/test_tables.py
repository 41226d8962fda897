"""Tables that come, go and fail while the source runs, on real Postgres and Kafka: the others are never disturbed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.source.status.status import SourceState, TableStatus
from tests.source.conftest import Running
from tests.source.poller import config, settings
from tests.source.workload import wait_until


class Shop:
    """A database with tables of one shape, and a connector on them."""

    def __init__(self, url: str, kafka: str, prefix: str) -> None:
        self.url, self.kafka, self.prefix = url, Kafka(kafka), prefix
        self.sql = psycopg.connect(url, autocommit=True)
        self.running: list[Running] = []

    def table(self, name: str, *ids: int) -> None:
        self.sql.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, amount numeric NOT NULL DEFAULT 1,"
                         " changed timestamp NOT NULL DEFAULT timezone('utc', clock_timestamp()))")  # fmt: skip
        self.add(name, *ids)

    def add(self, name: str, *ids: int) -> None:
        for number in ids:
            self.sql.execute(f"INSERT INTO {name} (id) VALUES (%s)", [number])

    def source(self, mode: str = "timestamp+incrementing", **changes: Any) -> Source:
        base = {"table__include__list": r"public\..*", "poll__interval__ms": "50", "table__poll__interval__ms": "100"}
        written = settings(self.url, mode, **{**base, **changes}) | {"topic.prefix": self.prefix}
        if "incrementing.column.name" in written and "table.include.list" in written:
            written["incrementing.column.mapping"] = ".*:" + written.pop("incrementing.column.name")
        if "timestamp.column.name" in written and "table.include.list" in written:
            written["timestamp.columns.mapping"] = ".*:[" + written.pop("timestamp.column.name") + "]"
        return Source(config(written, self.prefix), self.kafka)

    def start(self, mode: str = "timestamp+incrementing", **changes: Any) -> Running:
        self.running.append(Running(self.source(mode, **changes)))
        return self.running[-1]

    def keys(self, table: str) -> list[bytes | None]:
        topic = f"{self.prefix}{table}"
        return [message.key() for message in read(self.kafka, topic)] if self.kafka.topics([topic]) else []

    def wait_for(self, table: str, *keys: bytes) -> None:
        wait_until(
            lambda: self.keys(table) == list(keys) or any(running.ended for running in self.running),
            20,
            f"{keys} of {table}, not {self.keys(table)}",
        )
        assert self.keys(table) == list(keys), [running.error for running in self.running]

    def status(self, table: str) -> TableStatus | None:
        tables = self.running[-1].source.status().tables
        return next((found for found in tables if found.table == f"public.{table}"), None)

    def close(self) -> None:
        for running in self.running:
            if not running.ended:
                running.stop()
        self.sql.close()


@pytest.fixture
def shop(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Shop]:
    shop = Shop(database, kafka, f"{unique('m')}-")
    yield shop
    shop.close()


def test_tables_come_and_go_beside_one_that_stays(shop: Shop) -> None:
    """Added, dropped, renamed, made anew: one session, and the table that stays is polled all along."""
    shop.table("stays", 1)
    running = shop.start()
    shop.wait_for("stays", b"1")
    shop.table("fresh", 7)
    shop.wait_for("fresh", b"7")
    shop.sql.execute("ALTER TABLE fresh RENAME TO renamed")
    shop.wait_for("renamed", b"7")
    wait_until(lambda: shop.status("fresh") is None, what="the old name to be forgotten")
    shop.sql.execute("DROP TABLE renamed")
    wait_until(lambda: shop.status("renamed") is None, what="the dropped table to be forgotten")
    shop.table("renamed", 8)
    shop.wait_for("renamed", b"7", b"8", b"7")  # the old row's key is swept
    shop.add("stays", 2)
    shop.wait_for("stays", b"1", b"2")
    assert shop.status("stays").errors_total == 0  # type: ignore[union-attr]
    running.stop()


def test_a_listed_table_that_is_dropped_is_looked_for(shop: Shop) -> None:
    shop.table("stays", 1)
    shop.table("t", 1)
    shop.start(table__include__list=None, table__whitelist="stays,t")
    shop.wait_for("t", b"1")
    shop.sql.execute("DROP TABLE t")
    wait_until(lambda: shop.status("t").state is SourceState.FAILED, what="FAILED")  # type: ignore[union-attr]
    assert "looked for again" in (shop.status("t").detail or "")  # type: ignore[union-attr]
    shop.add("stays", 2)
    shop.wait_for("stays", b"1", b"2")
    shop.table("t", 1, 2)
    shop.wait_for("t", b"1", b"1", b"2")


def test_one_missing_table_keeps_no_other_from_coming_back(shop: Shop) -> None:
    shop.table("t", 1)
    shop.table("other", 1)
    shop.start(table__include__list=None, table__whitelist="t,other")
    shop.wait_for("other", b"1")
    shop.sql.execute("DROP TABLE t; DROP TABLE other")
    wait_until(lambda: "looked for again" in str(shop.status("other")), what="the loss of both")
    shop.table("other", 5)
    wait_until(lambda: b"5" in shop.keys("other"), what="the one that came back")
    assert shop.status("t").state is SourceState.FAILED  # type: ignore[union-attr]


def test_a_second_schema_with_that_table_name_is_not_mixed_in(shop: Shop) -> None:
    """Their topic would be the same; the source says so and goes on with what it has."""
    shop.table("t", 1)
    shop.start(table__include__list=r".*\.t", topic__creation__default__partitions="1")
    shop.wait_for("t", b"1")
    shop.sql.execute("CREATE SCHEMA ref")
    shop.table("ref.t", 9)
    warned = "public.t and ref.t would share a topic"
    wait_until(lambda: any(warned in text for text in shop.running[-1].source.status().warnings), what="the warning")
    shop.add("t", 2)
    shop.wait_for("t", b"1", b"2")


def test_a_table_whose_topic_does_not_fit_leaves_the_others_alone(shop: Shop) -> None:
    shop.table("t", 1)
    shop.start()
    shop.wait_for("t", b"1")
    shop.kafka.create_topic(f"{shop.prefix}late", partitions=1, replication=1, config={"cleanup.policy": "delete"})
    shop.table("late", 1)
    wait_until(lambda: "cleanup.policy=delete" in str(shop.status("late")), what="the refusal")
    shop.add("t", 2)
    shop.wait_for("t", b"1", b"2")


def test_a_query_whose_columns_change_is_planned_again(shop: Shop) -> None:
    shop.table("t", 1)
    shop.sql.execute("CREATE VIEW seen AS SELECT id, changed FROM t")
    shop.start(table__include__list=None, query="SELECT * FROM seen", topic__prefix="x")
    wait_until(lambda: len(shop.keys("")) == 1, what="the first row")
    shop.sql.execute("CREATE OR REPLACE VIEW seen AS SELECT id, changed, amount FROM t; INSERT INTO t VALUES (2)")
    wait_until(lambda: len(shop.keys("")) == 2, what="the row behind the change")
    last = list(read(shop.kafka, shop.prefix))[-1].value() or b""
    assert "amount" in json.loads(last)


def test_a_query_whose_table_goes_and_comes_back(shop: Shop) -> None:
    shop.table("t", 1)
    running = shop.start(table__include__list=None, query="SELECT id, changed FROM t", topic__prefix="x")
    wait_until(lambda: len(shop.keys("")) == 1, what="the first row")
    shop.sql.execute("DROP TABLE t")
    wait_until(lambda: 'relation "t" does not exist' in str(running.source.status().tables), what="the reason")
    shop.table("t", 2)
    wait_until(lambda: shop.keys("")[-1] == b"2", what="the row of the new table")


def test_nothing_to_poll_is_said_and_looked_for(shop: Shop) -> None:
    """The real connector is RUNNING without a task, and silent."""
    running = shop.start(table__include__list=r"public\.late")
    running.wait_for(SourceState.RUNNING)
    said = "; a pattern must fit the whole of schema.table; looked for again"
    assert any(said in text for text in running.source.status().warnings)
    shop.table("late", 1)
    shop.wait_for("late", b"1")


def test_once_with_nothing_to_poll_is_a_failure(shop: Shop) -> None:
    with pytest.raises(CompactoryError, match="no table of"):
        shop.source(table__include__list=r"public\.late").run(threading.Event(), once=True)


def test_a_table_that_was_given_up_goes_on_when_it_is_restarted(shop: Shop) -> None:
    shop.table("bad", 1)
    shop.sql.execute("INSERT INTO bad (id, amount) VALUES (2, 'NaN')")
    running = shop.start(query__retry__attempts="1")
    wait_until(lambda: "given up" in str(shop.status("bad")), what="the end of attempts")
    shop.sql.execute("UPDATE bad SET amount = 3 WHERE id = 2")
    running.source.orders.restart("public.bad")
    shop.wait_for("bad", b"1", b"2")
    assert shop.status("bad").state is SourceState.RUNNING  # type: ignore[union-attr]


def test_a_row_that_can_not_be_converted_stops_its_table_alone(shop: Shop) -> None:
    """The status names row and column, no value; it goes on by itself once the row is right."""
    shop.table("good", 1)
    shop.table("bad", 1)
    shop.sql.execute("INSERT INTO bad (id, amount) VALUES (2, 'NaN')")
    shop.start()
    shop.wait_for("good", b"1")
    wait_until(lambda: shop.status("bad").state is SourceState.FAILED, what="FAILED")  # type: ignore[union-attr]
    detail = shop.status("bad").detail or ""  # type: ignore[union-attr]
    assert "table public.bad: row id 2: column amount:" in detail
    shop.add("good", 2)
    shop.wait_for("good", b"1", b"2")
    shop.sql.execute("UPDATE bad SET amount = 3 WHERE id = 2")
    shop.wait_for("bad", b"1", b"2")
    assert shop.status("bad").detail is None  # type: ignore[union-attr]


def test_rows_that_can_not_be_converted_are_skipped_and_counted(shop: Shop) -> None:
    shop.table("t", 1)
    shop.sql.execute("INSERT INTO t (id, amount) VALUES (2, 'NaN'), (3, 3)")
    shop.start(errors__tolerance="all", poll__interval__ms="3600000")
    shop.wait_for("t", b"1", b"3")
    assert shop.status("t").skipped_total == 1  # type: ignore[union-attr]
    assert shop.status("t").state is SourceState.RUNNING  # type: ignore[union-attr]


def test_a_failing_query_is_given_up_after_its_attempts(shop: Shop) -> None:
    shop.table("t", 1)
    shop.sql.execute("CREATE VIEW broken AS SELECT id, 1 / (id - 1) AS amount, changed FROM t")
    both = r"public\.(t|broken)"
    shop.start("bulk", table__include__list=both, table__types="TABLE,VIEW", query__retry__attempts="2")
    wait_until(lambda: "given up after 2 attempts" in str(shop.status("broken")), what="giving up")
    wait_until(lambda: len(shop.keys("t")) > 3, what="the table beside it")


def test_a_query_goes_to_its_topic(shop: Shop) -> None:
    shop.table("t", 1, 2)
    topic = f"{shop.prefix}answers"
    shop.start(table__include__list=None, query="SELECT id, changed FROM t", topic__prefix=topic)
    wait_until(lambda: shop.running[-1].source.status().tables, what="the query")
    found = shop.running[-1].source.status().tables[0]
    assert (found.table, found.misses_late_commits) == ("query", True)
    wait_until(lambda: len(shop.keys("")) == 2, what="rows")
    value = next(iter(read(shop.kafka, shop.prefix))).value()
    assert json.loads(value or b"")["id"] == 1


def test_records_without_a_key_go_to_a_topic_that_keeps_them_by_age(shop: Shop) -> None:
    """As many connectors have it; the topic must be asked for, for it is no directory."""
    shop.table("t", 1, 2)
    keyless = {f"transforms__{name}": None for name in ("key__type", "key__fields", "id__type", "id__field")}
    with pytest.raises(ConfigError, match="records have no key"):
        shop.source("incrementing", transforms=None, **keyless).run(threading.Event())
    shop.start("incrementing", transforms=None, topic__creation__default__cleanup__policy="delete", **keyless)
    shop.wait_for("t", None, None)  # type: ignore[arg-type]
    assert shop.kafka.topic_configs([f"{shop.prefix}t"])[f"{shop.prefix}t"]["cleanup.policy"] == "delete"


def test_topics_get_what_the_connector_says(shop: Shop) -> None:
    shop.table("big", 1)
    shop.start(topic__creation__default__partitions="3", topic__creation__default__segment__ms="7200000")
    wait_until(lambda: shop.kafka.topics([f"{shop.prefix}big"]), what="the topic")
    assert len(shop.kafka.topics([f"{shop.prefix}big"])[f"{shop.prefix}big"].partitions) == 3
    assert shop.kafka.topic_configs([f"{shop.prefix}big"])[f"{shop.prefix}big"]["segment.ms"] == "7200000"


@pytest.mark.parametrize("relation", ["t", "seen"])
def test_bulk_removes_what_the_table_has_no_more(shop: Shop, relation: str) -> None:
    """Guarantee 10, where it is asked for; of a view as well, for a poll shows the whole of it."""
    shop.table("t", 1, 2, 3)
    shop.sql.execute("CREATE VIEW seen AS SELECT * FROM t")
    shop.start("bulk", compactory__bulk__deletes="on", table__include__list=f"public.{relation}",
               table__types="TABLE,VIEW")  # fmt: skip
    wait_until(lambda: b"3" in shop.keys(relation), what="the rows")
    shop.sql.execute("DELETE FROM t WHERE id = 2")

    def gone() -> bool:
        found = [(message.key(), message.value()) for message in read(shop.kafka, f"{shop.prefix}{relation}")]
        return (b"2", None) in found and (b"1", None) not in found

    wait_until(gone, what="the tombstone")


@pytest.mark.proof
def test_two_hundred_tables(shop: Shop) -> None:
    """All are loaded and then followed by one connection."""
    for number in range(200):
        shop.table(f"t{number}", 1)
    shop.start(poll__interval__ms="500")
    wait_until(lambda: len(shop.running[-1].source.status().tables) == 200, 120, "200 tables")
    wait_until(lambda: all(t.current_at for t in shop.running[-1].source.status().tables), 120, "200 loads")
    shop.add("t199", 2)
    shop.wait_for("t199", b"1", b"2")


def test_a_name_that_makes_no_topic_stops_its_table_alone(shop: Shop) -> None:
    """Guarantee 12: before the start as well as later, so that a new table can't keep a source from starting."""
    shop.table("good", 1)
    everything = {"table__include__list": None, "table__whitelist": None, "table__blacklist": "nothing"}
    everything |= {"validate__non__null": "true"}
    shop.start(**everything)
    shop.wait_for("good", b"1")
    shop.table('"price list"', 1)
    wait_until(lambda: (status := shop.status("price list")) and status.state is SourceState.FAILED, what="FAILED")
    assert "'" + f"{shop.prefix}price list" + "'" in (shop.status("price list").detail or "")  # type: ignore[union-attr]
    shop.running.pop().stop()
    shop.add("good", 2)
    shop.start(**everything)
    shop.wait_for("good", b"1", b"2")
    shop.running.pop().stop()
    shop.add("good", 3)
    with pytest.raises(CompactoryError, match="price list"):
        shop.source(**everything).run(threading.Event(), once=True, timeout=20)
    assert shop.keys("good") == [b"1", b"2", b"3"]
