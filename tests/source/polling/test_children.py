"""Tables whose rows are in other tables as well, and columns whose types change: what a plan rests on is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.schema import Adoption, adopt
from compactory_connectors.source.offsets.offset import SourceOffset
from compactory_connectors.source.postgres.poll_transaction import TableReplaced
from tests.source.poller import Poller, cleared

TABLE = "CREATE TABLE t (id int8 PRIMARY KEY, changed timestamp NOT NULL DEFAULT now(), v text)"
CHILD = (
    "CREATE TABLE child (LIKE t INCLUDING DEFAULTS);"
    " INSERT INTO child SELECT n, now(), 'c' FROM generate_series(10, 14) n"
)


@pytest.fixture
def sql(shared: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(cleared(shared), autocommit=True) as connection:
        yield connection


@pytest.fixture
def poller(shared: str, sql: psycopg.Connection) -> Iterator[Callable[..., Poller]]:
    made: list[Poller] = []

    def make(**changes: Any) -> Poller:
        made.append(Poller(shared, changes.pop("mode", "timestamp+incrementing"), **changes))
        return made[-1]

    yield make
    for each in made:
        each.close()


def settled(poller: Poller) -> list[Any]:
    """What a source makes of a change: it polls, and looks at the table again where that is another one."""
    try:
        return poller.poll()
    except TableReplaced:
        poller.restart()
        return poller.poll()


def sweeps(poller: Poller) -> bool:
    assert poller.stored
    return SourceOffset.loads(poller.stored).sweep


def test_rows_of_a_child_that_joins(sql: psycopg.Connection, poller: Callable[..., Poller]) -> None:
    """Guarantee 8: they are older than any snapshot, and sent all the same; a child's child as well."""
    sql.execute(f"{TABLE}; {CHILD}; INSERT INTO t VALUES (1, now(), 'r')")
    feed = poller()
    assert feed.ids() == [1]
    sql.execute("ALTER TABLE child INHERIT t")
    assert [row["id"] for row in settled(feed)] == [10, 11, 12, 13, 14]
    sql.execute("CREATE TABLE grandchild () INHERITS (child); INSERT INTO grandchild VALUES (20, now(), 'g')")
    assert [row["id"] for row in settled(feed)] == [20]
    sql.execute("UPDATE child SET v = 'changed' WHERE id = 10")
    assert [row["id"] for row in settled(feed)] == [10]


@pytest.mark.parametrize("change", ["TRUNCATE child", "DROP TABLE child", "ALTER TABLE child NO INHERIT t"])
def test_rows_of_a_child_that_are_gone(sql: psycopg.Connection, poller: Callable[..., Poller], change: str) -> None:
    """Guarantee 10: the topic is looked through for them."""
    sql.execute(f"{TABLE}; {CHILD}; ALTER TABLE child INHERIT t")
    feed = poller()
    assert len(feed.ids()) == 5
    feed.stored = SourceOffset.loads(feed.stored or b"").dumps().replace(b'"sweep":true', b'"sweep":false')
    feed.restart()
    assert feed.poll() == []
    sql.execute(change)
    assert settled(feed) == []
    assert sweeps(feed)


def test_foreign_partitions_are_refused(sql: psycopg.Connection, poller: Callable[..., Poller]) -> None:
    """Guarantee 8: what changes there can't be seen, so no status says that it is."""
    sql.execute("CREATE TABLE t (id int8 NOT NULL, changed timestamp NOT NULL DEFAULT now()) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE near PARTITION OF t FOR VALUES FROM (0) TO (10)")
    feed = poller(**{"table.types": "PARTITIONED TABLE"})
    sql.execute("INSERT INTO t VALUES (1)")
    assert feed.ids() == [1]
    sql.execute("CREATE FOREIGN DATA WRAPPER none; CREATE SERVER far FOREIGN DATA WRAPPER none")
    try:
        sql.execute("CREATE FOREIGN TABLE away PARTITION OF t FOR VALUES FROM (10) TO (20) SERVER far")
        with pytest.raises(ConfigError, match=r"away is a foreign table, .* mode=bulk"):
            settled(feed)
    finally:
        sql.execute("DROP FOREIGN DATA WRAPPER none CASCADE")


@pytest.mark.parametrize("kind", ["place", "place[]", "somewhere"])
def test_attributes_of_a_composite_type_are_part_of_the_plan(
    sql: psycopg.Connection, poller: Callable[..., Poller], kind: str
) -> None:
    """Guarantee 8: a running source looks at the table again before it reads rows of another layout."""
    sql.execute("CREATE TYPE point3 AS (x int, y int); CREATE TYPE place AS (name text, at point3)")
    sql.execute("CREATE DOMAIN somewhere AS place")
    sql.execute(f"{TABLE}; ALTER TABLE t ADD COLUMN p {kind}; INSERT INTO t VALUES (1, now(), 'r')")
    feed = poller()
    assert feed.ids() == [1]
    for change in ("ALTER TYPE point3 RENAME ATTRIBUTE y TO z", "ALTER TYPE place ADD ATTRIBUTE note text"):
        sql.execute(f"{change}; UPDATE t SET v = v || '.'")
        with pytest.raises(TableReplaced):
            feed.poll()
        feed.restart()
        assert feed.ids() == [1]


def test_a_trigger_that_takes_stamps_back_hides_no_change(
    sql: psycopg.Connection, poller: Callable[..., Poller]
) -> None:
    """Guarantees 8, 10: what fires after ours is seen, polls go by ``xmin``, and deletions by the log."""
    sql.execute(f"{TABLE}; INSERT INTO t VALUES (1, now(), 'r'), (2, now(), 's')")
    adopt(sql, Adoption(table="t", key=("id",), timestamp="changed"))
    feed = poller()
    assert feed.ids() == [1, 2]
    sql.execute(
        "CREATE FUNCTION former() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN NEW.updated_xid := OLD.updated_xid; RETURN NEW; END';"
        "CREATE TRIGGER zzz BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION former()"
    )
    assert settled(feed) == []
    assert feed.plan.adopted
    assert "zzz on t fires after" in " ".join(feed.plan.warnings)
    for value in "abc":
        sql.execute("UPDATE t SET v = %s WHERE id = 1", [value])
        assert [row["v"] for row in feed.poll()] == [value]
        assert feed.poll() == []
    sql.execute("DELETE FROM t WHERE id = 2")
    assert feed.poll() == [(b"2", None)]
    sql.execute("DROP TRIGGER zzz ON t; UPDATE t SET v = 'd' WHERE id = 1")
    assert [row["v"] for row in settled(feed)] == ["d"]
    assert feed.plan.stamped
