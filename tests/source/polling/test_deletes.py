"""Deletions that a poll can't see in the table any more, and keys that go from row to row."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.schema import Adoption, adopt, install
from compactory_connectors.source.offsets.offset import SourceOffset
from tests.source.conftest import Bench
from tests.source.harness import Feed, add, expected
from tests.source.poller import KEYED, Poller
from tests.source.removals.test_removals import ROWS, held, living, status
from tests.source.removals.test_removals import adopted as adopt_bench
from tests.source.workload import wait_until


def alive(sql: psycopg.Connection) -> dict[bytes, bytes]:
    """What a topic with the terminal as its key must hold."""
    rows = sql.execute("SELECT terminal_id, id, acquirer_id FROM terminal_acquirer WHERE is_active").fetchall()
    return {terminal.encode(): f"{number}|{terminal}|{acquirer}|t".encode() for terminal, number, acquirer in rows}


@pytest.fixture
def terminals(database: str, sql: psycopg.Connection, adopted: bool) -> Iterator[Feed]:
    feed = Feed(database, key="terminal_id", adopted=adopted)
    yield feed
    feed.close()


OFF = "UPDATE terminal_acquirer SET is_active = false WHERE id = 1"
ON = "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'B')"
EDIT = "UPDATE terminal_acquirer SET acquirer_id = 'edited' WHERE id = 1"


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "order",
    list(itertools.permutations((OFF, ON, EDIT))),
    ids=lambda order: "-".join({OFF: "off", ON: "on", EDIT: "edit"}[step] for step in order),
)
def test_a_key_handed_from_row_to_row(
    sql: psycopg.Connection, terminals: Feed, order: tuple[str, ...], together: bool
) -> None:
    """Guarantee 10: old row off and new row on, in any order, in one transaction or several, edited meanwhile."""
    add(sql, "T1")
    terminals.poll()
    with sql.transaction():
        for step in order:
            sql.execute(step)
            if not together:
                sql.execute("COMMIT")
                sql.execute("BEGIN")
    terminals.poll()
    assert terminals.topic == alive(sql)
    assert (b"T1", None) not in terminals.sent


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE terminal_acquirer SET acquirer_id = 'late' WHERE id = 1",
        "DELETE FROM terminal_acquirer WHERE id = 1",
        "UPDATE terminal_acquirer SET is_active = is_active",
        "UPDATE terminal_acquirer SET is_active = NOT is_active",
        "DELETE FROM terminal_acquirer WHERE id = 2; UPDATE terminal_acquirer SET is_active = true WHERE id = 1",
    ],
)
def test_changes_of_an_old_row_while_another_has_the_key(sql: psycopg.Connection, terminals: Feed, change: str) -> None:
    """Guarantee 10: the entry is that of the active row."""
    add(sql, "T1", active=False)
    add(sql, "T1")
    terminals.poll()
    sql.execute("BEGIN")
    sql.execute(change)
    sql.execute("COMMIT")
    terminals.poll()
    assert terminals.topic == alive(sql)


@pytest.mark.parametrize("adopted", ["adopted"], indirect=True)
def test_a_row_that_lived_and_died_between_two_polls(sql: psycopg.Connection, terminals: Feed) -> None:
    """Guarantee 10: active, off, deleted for good, and the key given to another row, before anybody looked."""
    add(sql, "T1", "T2")
    terminals.poll()
    sql.execute("UPDATE terminal_acquirer SET is_active = false")
    sql.execute("DELETE FROM terminal_acquirer")
    add(sql, "T3", "T1")
    sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE terminal_id = 'T3'")
    sql.execute("DELETE FROM terminal_acquirer WHERE terminal_id = 'T3'")
    terminals.poll(2)
    assert terminals.topic == alive(sql)
    assert (b"T1", None) not in terminals.sent


@pytest.mark.parametrize("key", ["id", "terminal_id"])
@pytest.mark.parametrize("adopted", ["adopted"], indirect=True)
def test_random_lives_of_rows(database: str, sql: psycopg.Connection, seeded: random.Random, key: str) -> None:
    """Guarantee 10: inserts, edits, deactivations, deletions and restarts in any order; no gap for a living key."""
    feed = Feed(database, key=key, adopted=True)
    wanted = (lambda: alive(sql)) if key == "terminal_id" else (lambda: expected(database))
    for _ in range(60):
        with sql.transaction():
            for _ in range(seeded.randrange(1, 6)):
                _live(sql, seeded)
        if seeded.random() < 0.6:
            before, sent = wanted(), len(feed.sent)
            feed.poll(seeded.choice([1, 2, 5, 100]), pages=seeded.choice([None, None, 1]))
            assert not {name for name, value in feed.sent[sent:] if value is None} & before.keys()
        if seeded.random() < 0.2:
            feed.restart()
    feed.poll()
    feed.poll()
    assert feed.topic == wanted()
    feed.close()


def _live(sql: psycopg.Connection, dice: random.Random) -> None:
    terminal = f"T{dice.randrange(6)}"
    busy = sql.execute("SELECT id FROM terminal_acquirer WHERE is_active AND terminal_id = %s", [terminal]).fetchone()
    step = dice.randrange(4)
    if step == 0 and busy is None:
        add(sql, terminal)
    elif step == 1 and busy is not None:
        sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = %s", busy)
    elif step == 2:
        sql.execute("DELETE FROM terminal_acquirer WHERE NOT is_active AND terminal_id = %s", [terminal])
    else:
        sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'A' || %s WHERE terminal_id = %s",
                    [dice.getrandbits(40), terminal])  # fmt: skip


KEYS = {
    "int8": "9007199254740993",
    "numeric(20,4)": "12.5000",
    "numeric": "1e-7",
    "float8": "0.30000000000000004",
    "float4": "16777.217",
    "text": 'é \\ "quoted" \u2028',
    "char(5)": "ab",
    "bytea": "\\x00ff27",
    "uuid": "6ec0bd7f-11c0-43da-975e-2a8ad9ebae0b",
    "bool": "true",
    "date": "2024-02-29",
    "time": "23:59:59.999999",
    "timestamp": "2024-01-01 00:00:00.000001",
    "timestamptz": "2024-01-01 12:00:00.5+03",
    "jsonb": '{"b": 1, "a": [1.0, null]}',
}


ODD = ("timezone=Asia/Kolkata", "datestyle=German", "extra_float_digits=-3", "bytea_output=escape",
       "intervalstyle=sql_standard")  # fmt: skip
"""Settings of an application's session, which formats what the log takes down."""

BY_K = KEYED | {
    "transforms.key.fields": "k",
    "transforms.id.field": "k",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "true",
}


@pytest.mark.parametrize("kind", KEYS)
def test_the_tombstone_of_a_lost_row_has_the_very_key_of_its_record(database: str, kind: str) -> None:
    """Guarantee 10: canonical key bytes, whether a row comes from the table or as JSON out of the log."""
    with psycopg.connect(database, autocommit=True) as sql:
        changed = "changed timestamp NOT NULL DEFAULT now()"
        sql.execute(f"CREATE TABLE t (id int8 PRIMARY KEY, {changed}, k {kind} NOT NULL)")
        sql.execute(f"INSERT INTO t (id, k) SELECT 1, %s::text::{kind}", [KEYS[kind]])
        install(sql)
        adopt(sql, Adoption(table="t", key=("k",), timestamp="changed"))
    poller = Poller(database, "timestamp+incrementing", **BY_K)
    poller.poll()
    with psycopg.connect(database, options=" ".join(f"-c {setting}" for setting in ODD)) as application:
        application.execute("DELETE FROM t")
    poller.poll()
    (key, value), (gone, nothing) = poller.sent
    assert (gone, nothing) == (key, None)
    assert value is not None
    poller.close()


@pytest.mark.parametrize("columns", ["same", "other"])
def test_a_table_dropped_and_made_again(bench: Bench, columns: str) -> None:
    """Guarantees 8, 10: another oid under the same name: loaded afresh, and what it lacks is removed."""
    bench.sql.execute(ROWS.format(50))
    running = bench.start()
    bench.wait_for_records(50)
    other = "note text NOT NULL DEFAULT 'n', " if columns == "other" else ""
    with bench.sql.transaction():
        bench.sql.execute("DROP TABLE terminal_acquirer")
        bench.sql.execute("CREATE TABLE terminal_acquirer (id int8 GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,"
                          f" terminal_id text NOT NULL, acquirer_id text NOT NULL, {other}"
                          " updated_date timestamp NOT NULL DEFAULT timezone('utc', now()),"
                          " is_active bool NOT NULL DEFAULT true)")  # fmt: skip
        bench.sql.execute(ROWS.format(46))
    wait_until(lambda: living(bench) == set(range(1, 47)), what="the keys of the new table")
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
    wait_until(lambda: b'"B"' in (dict(bench.records())[b"1"] or b""), what="a change of the new table")
    if columns == "other":
        assert b'"note":"n"' in (dict(bench.records())[b"2"] or b"")
    assert status(running).removal is None


def test_a_table_made_again_without_its_rows_is_held(bench: Bench) -> None:
    """Guarantee 13: an empty table under the old name is likelier a mistake than the truth."""
    bench.sql.execute(ROWS.format(50))
    running = bench.start()
    bench.wait_for_records(50)
    with bench.sql.transaction():
        bench.sql.execute("CREATE TABLE fresh (LIKE terminal_acquirer INCLUDING ALL)")
        bench.sql.execute("DROP TABLE terminal_acquirer")
        bench.sql.execute("ALTER TABLE fresh RENAME TO terminal_acquirer")
    assert held(running).removed == 50
    assert len(living(bench)) == 50


def test_truncate_of_an_adopted_table_between_two_polls(bench: Bench) -> None:
    """Guarantee 10: rows that TRUNCATE took are logged; those that came in after it stay."""
    bench.sql.execute(ROWS.format(60))
    adopt_bench(bench)
    bench.once(soft_delete=True)
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false")
    with bench.sql.transaction():
        bench.sql.execute("TRUNCATE terminal_acquirer")
        bench.sql.execute(ROWS.format(60).replace("(terminal_id", "(id, terminal_id").replace("SELECT", "SELECT n,"))
    bench.once(soft_delete=True)
    assert living(bench) == set(range(1, 61))
    assert all(value is not None for _, value in bench.records())


CHANGED = "changed timestamp NOT NULL DEFAULT now()"


def lost_rows(database: str, key: str, *columns: str, **values: str) -> Poller:
    """A polled, adopted table whose two rows were deleted by a session with German dates, and not polled since."""
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE TYPE kind AS ENUM ('cash', 'card')")
        sql.execute("CREATE DOMAIN amount AS int")
        sql.execute(f"CREATE TABLE t (id int8 PRIMARY KEY, {CHANGED}, {', '.join(columns)})")
        names, made = ", ".join(values), ", ".join(values.values())
        sql.execute(f"INSERT INTO t (id, {names}) SELECT n, {made} FROM generate_series(1, 2) n")
        adopt(sql, Adoption(table="t", key=(key,), timestamp="changed"))
        for function in ("log_delete", "log_deletes", "log_truncate"):  # as the first version made them
            sql.execute(f"ALTER FUNCTION compactory.{function}() RESET DateStyle")
    by_key = KEYED | {"transforms.key.fields": key, "transforms.id.field": key}
    poller = Poller(database, "timestamp+incrementing", **by_key)
    assert len(poller.poll()) == 2
    with psycopg.connect(database, options="-c datestyle=German") as application:
        application.execute("DELETE FROM t")
    return poller


@pytest.mark.parametrize(
    "change",
    [
        "SELECT",
        "ALTER TABLE t ALTER span TYPE text",
        "ALTER TABLE t ALTER note TYPE int USING 1",
        "ALTER TYPE kind RENAME VALUE 'cash' TO 'coins'",
        "ALTER DOMAIN amount ADD CHECK (VALUE > 5)",
        "ALTER DOMAIN amount SET NOT NULL",
        "ALTER TABLE t DROP COLUMN note",
        "ALTER TABLE t ADD COLUMN fresh int NOT NULL DEFAULT 1",
    ],
)
def test_a_deletion_outlives_changes_of_other_columns(database: str, change: str) -> None:
    """Guarantee 10: of a logged row only the columns of the record key are read."""
    columns = ("span daterange", "note text", "kind kind", "amount amount", "k text NOT NULL")
    values = {"span": "daterange('2024-03-31', '2024-04-30')", "note": "'n'", "kind": "'cash'::kind", "amount": "1",
              "k": "'K' || n"}  # fmt: skip
    poller = lost_rows(database, "k", *columns, **values)
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(change)
    poller.restart()
    assert poller.poll() == [(b"K1", None), (b"K2", None)]
    poller.close()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TYPE kind RENAME VALUE 'cash' TO 'coins'",
        """UPDATE compactory.deleted_rows SET "row" = "row" - 'k'""",
        "DROP TRIGGER zz_compactory_key ON t; ALTER TABLE t ALTER k TYPE int8 USING 1",
    ],
)
def test_a_deletion_whose_key_can_not_be_read_any_more_is_left_to_a_sweep(database: str, change: str) -> None:
    """Guarantee 10: the table goes on, and its topic is looked through."""
    poller = lost_rows(database, "k", "k kind", k="CASE n WHEN 1 THEN 'cash' ELSE 'card' END::kind")
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(change)
        adopt(sql, Adoption(table="t", key=("k",), timestamp="changed"))
    for _ in range(2):
        poller.restart()
        poller.poll()
        assert poller.stored
        assert SourceOffset.loads(poller.stored).sweep
    assert len(poller.sent) == 2
    poller.close()


def test_a_record_key_that_may_be_updated_is_refused_unless_swept(database: str) -> None:
    """Guarantee 10: the old key of such a row is in no log, and would stay in the topic."""
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(f"CREATE TABLE t (id int8 PRIMARY KEY, {CHANGED}, k text NOT NULL, other text NOT NULL)")
        adopt(sql, Adoption(table="t", key=("k",), timestamp="changed"))
        by_other = KEYED | {"transforms.key.fields": "other", "transforms.id.field": "other"}
        remedy = "compactory sql adopt public.t --key other --timestamp changed, or set compactory.sweep.interval.ms"
        with pytest.raises(ConfigError, match=f"other of the record key may be updated, .* run {remedy}"):
            Poller(database, "timestamp+incrementing", **by_other)
        swept = by_other | {"compactory.sweep.interval.ms": "60000"}
        Poller(database, "timestamp+incrementing", **swept).close()
        Poller(database, "incrementing", **by_other).close()
        adopt(sql, Adoption(table="t", key=("other",), timestamp="changed"))
    Poller(database, "timestamp+incrementing", **by_other).close()


def test_a_soft_delete_column_that_a_loaded_connector_is_given(bench: Bench) -> None:
    """Guarantee 10: rows that were inactive before leave the topic; without the column they come back."""
    bench.sql.execute(ROWS.format(60))
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id <= 10")
    bench.once()
    assert len(living(bench)) == 60
    bench.once(soft_delete=True)
    assert living(bench) == set(range(11, 61))
    bench.once()
    assert len(living(bench)) == 60
