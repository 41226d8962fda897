"""What the triggers of an adopted table do, however a row is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RaiseException, UniqueViolation

import compactory_sql
from compactory_connectors.schema import Adoption, adopt, inspect

from .conftest import TERMINALS, column, one

REFUSED = r"Active settings \(is_active = true\) can not be deleted. Make it inactive firstly \(is_active = false\)"

STAMPED = "SELECT count(*) FROM terminal_acquirer WHERE updated_xid = pg_current_xact_id()"


def deleted(connection: psycopg.Connection) -> list[object]:
    return column(connection, """SELECT "row" ->> 'terminal_id' FROM compactory.deleted_rows ORDER BY id""")


@pytest.fixture
def tx(adopted: psycopg.Connection, connect: Callable[..., psycopg.Connection]) -> psycopg.Connection:
    """A connection to the adopted table whose transactions last until they are ended."""
    return connect(autocommit=False)


def test_inserts_updates_upserts_and_copy_are_stamped(tx: psycopg.Connection):
    tx.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id, updated_xid) VALUES ('N1', 'A', '5')")
    tx.execute("UPDATE terminal_acquirer SET acquirer_id = 'B', updated_xid = '5' WHERE terminal_id IN ('T1', 'T2')")
    tx.execute("""INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T3', 'C'), ('N2', 'C')
                  ON CONFLICT (terminal_id) WHERE is_active IS TRUE DO UPDATE SET acquirer_id = EXCLUDED.acquirer_id""")
    with tx.cursor().copy("COPY terminal_acquirer (terminal_id, acquirer_id) FROM STDIN") as copy:
        copy.write("N3\tA\nN4\tA\n")
    assert one(tx, STAMPED) == 7
    assert one(tx, "SELECT count(*) FROM terminal_acquirer WHERE acquirer_id = 'C'") == 2


def test_savepoints_and_exception_blocks_stamp_the_top_level_transaction(tx: psycopg.Connection):
    tx.execute("SELECT 1")  # from here on, each block is a savepoint
    with tx.transaction():
        tx.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE terminal_id = 'T1'")
    with tx.transaction(force_rollback=True):
        tx.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE terminal_id = 'T2'")
    tx.execute("""DO $$ BEGIN
        UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE terminal_id = 'T4';
        BEGIN PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN
            UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE terminal_id = 'T5'; END;
    END $$""")
    assert one(tx, STAMPED) == 3


def test_updates_are_dated_in_utc_and_inserts_keep_the_date_they_bring(tx: psycopg.Connection):
    tx.execute("SET timezone = 'Asia/Kolkata'")
    tx.execute("UPDATE terminal_acquirer SET updated_date = '2000-01-01' WHERE terminal_id = 'T1'")
    tx.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id, updated_date) VALUES ('O', 'A', '2000-01-01')")
    tx.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id, updated_date) VALUES ('N', 'A', NULL)")
    now = "updated_date = now() AT TIME ZONE 'utc'"
    assert column(tx, f"SELECT terminal_id FROM terminal_acquirer WHERE {now} ORDER BY 1") == ["N", "T1"]
    assert one(tx, "SELECT updated_date::text FROM terminal_acquirer WHERE terminal_id = 'O'") == "2000-01-01 00:00:00"


def test_a_column_with_time_zone_takes_the_instant(db: psycopg.Connection):
    db.execute("CREATE TABLE t (id int, k text, updated_date timestamptz NOT NULL DEFAULT now())")
    adopt(db, Adoption(table="t", key=("k",)))
    db.execute("SET timezone = 'Asia/Kolkata'")
    db.execute("INSERT INTO t VALUES (1, 'a', '2000-01-01')")
    db.execute("UPDATE t SET k = k")
    assert one(db, "SELECT now() - updated_date < interval '1 minute' FROM t")


@pytest.mark.parametrize(("change", "named"), [("terminal_id = 'X'", "terminal_id"), ("id = 77", "id")])
def test_key_and_id_are_immutable(adopted: psycopg.Connection, change: str, named: str):
    with pytest.raises(RaiseException, match=f"^{named} cannot be changed"):
        adopted.execute(f"UPDATE terminal_acquirer SET {change} WHERE terminal_id = 'T1'")
    adopted.execute("UPDATE terminal_acquirer SET terminal_id = terminal_id, id = id")


def test_a_key_that_only_looks_different_is_another_key_in_kafka(db: psycopg.Connection):
    db.execute("CREATE TABLE t (id int, k numeric, updated_date timestamp NOT NULL DEFAULT now())")
    adopt(db, Adoption(table="t", key=("k",)))
    db.execute("INSERT INTO t VALUES (1, 1.0)")
    with pytest.raises(RaiseException, match="k, id cannot be changed"):
        db.execute("UPDATE t SET k = 1.00")
    db.execute("UPDATE t SET k = 1.0")


def test_triggers_of_the_application_fire_before_ours(adopted: psycopg.Connection):
    adopted.execute("""CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
                       BEGIN NEW.updated_xid := '5'; NEW.terminal_id := 'X'; RETURN NEW; END $$""")
    adopted.execute("CREATE TRIGGER z BEFORE UPDATE ON terminal_acquirer FOR EACH ROW EXECUTE FUNCTION meddle()")
    with pytest.raises(RaiseException, match="terminal_id cannot be changed"):
        adopted.execute("UPDATE terminal_acquirer SET acquirer_id = 'B'")
    assert inspect(adopted, "terminal_acquirer").problems == ()
    adopted.execute("ALTER TRIGGER z ON terminal_acquirer RENAME TO zzz")
    assert inspect(adopted, "terminal_acquirer").problems == (
        (
            "trigger zzz on terminal_acquirer fires after Compactory's and may change updated_xid, so each poll reads"
            " the whole table by xmin"
        ),
    )


def test_an_active_row_is_not_deleted(adopted: psycopg.Connection):
    with pytest.raises(RaiseException, match=REFUSED):
        adopted.execute("DELETE FROM terminal_acquirer WHERE terminal_id = 'T1'")
    with pytest.raises(RaiseException, match=REFUSED):
        adopted.execute("TRUNCATE terminal_acquirer")
    assert one(adopted, "SELECT count(*) FROM terminal_acquirer") == 10
    assert deleted(adopted) == []


@pytest.mark.parametrize("partitions", ["", "PARTITION BY LIST (terminal_id)"])
def test_a_row_with_null_is_active(db: psycopg.Connection, partitions: str):
    """As for a source and a store: only FALSE deletes."""
    db.execute(
        "CREATE TABLE t (id int, terminal_id text, is_active boolean, updated_date timestamp NOT NULL DEFAULT now())"
        + partitions
    )
    if partitions:
        db.execute("CREATE TABLE part PARTITION OF t DEFAULT")
    adopt(db, Adoption(table="t", key=("terminal_id",), active="is_active"))
    db.execute("INSERT INTO t VALUES (1, 'a', NULL)")
    for statement in ("DELETE FROM t", "TRUNCATE t"):
        with pytest.raises(RaiseException, match=REFUSED):
            db.execute(statement)
    db.execute("UPDATE t SET is_active = false")
    db.execute("DELETE FROM t")
    assert deleted(db) == ["a"]


@pytest.mark.parametrize("partitions", ["", "PARTITION BY LIST (terminal_id)"])
def test_active_rows_may_be_deleted_where_the_adoption_allows_it(db: psycopg.Connection, partitions: str):
    """One active row a key is kept, keys may not change, and each deletion is logged."""
    db.execute(
        "CREATE TABLE t (id int, terminal_id text, is_active boolean, updated_date timestamp NOT NULL DEFAULT now())"
        + partitions
    )
    if partitions:
        db.execute("CREATE TABLE part PARTITION OF t DEFAULT")
    asked = Adoption(table="t", key=("terminal_id",), active="is_active", allow_deletes=True)
    adopt(db, asked)
    db.execute("INSERT INTO t VALUES (1, 'a', true), (2, 'b', true), (3, 'b', false)")
    with pytest.raises(UniqueViolation):
        db.execute("INSERT INTO t VALUES (4, 'a', true)")
    with pytest.raises(RaiseException, match="terminal_id"):
        db.execute("UPDATE t SET terminal_id = 'c'")
    db.execute("DELETE FROM t WHERE id = 1")
    db.execute("TRUNCATE t")
    assert deleted(db) == ["a", "b", "b"]
    state = inspect(db, "t")
    assert (state.adoption, state.problems) == (replace(asked, table="public.t"), ())
    adopt(db, replace(asked, allow_deletes=False))
    db.execute("INSERT INTO t VALUES (5, 'a', true)")
    with pytest.raises(RaiseException, match=REFUSED):
        db.execute("DELETE FROM t")


def test_a_deleted_row_is_logged_whole(tx: psycopg.Connection):
    tx.execute("UPDATE terminal_acquirer SET is_active = false, acquirer_id = 'ü\"' WHERE terminal_id IN ('T1', 'T2')")
    row = one(tx, "SELECT to_jsonb(t) FROM terminal_acquirer AS t WHERE terminal_id = 'T1'")
    tx.execute("DELETE FROM terminal_acquirer WHERE terminal_id = 'T1'")
    log = """SELECT "table"::text, "row", xid = pg_current_xact_id() FROM compactory.deleted_rows"""
    assert tx.execute(log).fetchall() == [("terminal_acquirer", row, True)]
    restored = """SELECT t.updated_date = (d."row" ->> 'updated_date')::timestamp
                    FROM compactory.deleted_rows AS d, jsonb_populate_record(NULL::terminal_acquirer, d."row") AS t"""
    assert one(tx, restored)
    tx.rollback()
    assert deleted(tx) == []


def test_a_row_that_a_later_trigger_keeps_is_not_logged(adopted: psycopg.Connection):
    adopted.execute("UPDATE terminal_acquirer SET is_active = false")
    adopted.execute("""CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$""")
    adopted.execute("CREATE TRIGGER zzz BEFORE DELETE ON terminal_acquirer FOR EACH ROW EXECUTE FUNCTION keep()")
    adopted.execute("DELETE FROM terminal_acquirer")
    assert one(adopted, "SELECT count(*) FROM terminal_acquirer") == 10
    assert deleted(adopted) == []


def test_truncate_logs_every_inactive_row(adopted: psycopg.Connection):
    adopted.execute("UPDATE terminal_acquirer SET is_active = false")
    adopted.execute("TRUNCATE terminal_acquirer")
    assert sorted(deleted(adopted)) == sorted(f"T{i}" for i in range(1, 11))


def test_truncate_with_a_snapshot_that_may_be_too_old_is_refused(tx: psycopg.Connection):
    tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with pytest.raises(RaiseException, match="needs isolation level READ COMMITTED"):
        tx.execute("TRUNCATE terminal_acquirer")


def test_without_an_active_column_any_row_may_go(db: psycopg.Connection):
    db.execute("CREATE TABLE t (id int, terminal_id text, updated_date timestamp NOT NULL DEFAULT now())")
    adopt(db, Adoption(table="t", key=("terminal_id",)))
    db.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    with pytest.raises(UniqueViolation):
        db.execute("INSERT INTO t VALUES (4, 'a')")
    db.execute("DELETE FROM t WHERE id = 1")
    db.execute("TRUNCATE t")
    assert deleted(db) == ["a", "b", "c"]


def test_foreign_key_cascades_are_seen(adopted: psycopg.Connection):
    adopted.execute("CREATE TABLE acquirer (id text PRIMARY KEY); INSERT INTO acquirer VALUES ('A'), ('B')")
    adopted.execute("""ALTER TABLE terminal_acquirer ADD FOREIGN KEY (acquirer_id) REFERENCES acquirer
                       ON DELETE CASCADE ON UPDATE CASCADE""")
    adopted.execute("UPDATE terminal_acquirer SET acquirer_id = 'B', is_active = false WHERE terminal_id = 'T1'")
    with adopted.transaction():
        adopted.execute("UPDATE acquirer SET id = 'Z' WHERE id = 'A'")
        assert one(adopted, STAMPED) == 9
    with pytest.raises(RaiseException, match=REFUSED):
        adopted.execute("DELETE FROM acquirer WHERE id = 'Z'")
    adopted.execute("DELETE FROM acquirer WHERE id = 'B'")
    assert deleted(adopted) == ["T1"]


def test_session_replication_role_does_not_switch_the_triggers_off(tx: psycopg.Connection):
    tx.execute("SET session_replication_role = replica")
    tx.execute("UPDATE terminal_acquirer SET is_active = false WHERE terminal_id = 'T1'")
    assert one(tx, STAMPED) == 1
    tx.execute("DELETE FROM terminal_acquirer WHERE terminal_id = 'T1'")
    assert deleted(tx) == ["T1"]
    with pytest.raises(RaiseException, match="cannot be changed"):
        tx.execute("UPDATE terminal_acquirer SET terminal_id = 'X'")


def test_an_application_needs_rights_on_its_table_only(
    adopted: psycopg.Connection, role: Callable[[], str], connect: Callable[..., psycopg.Connection]
):
    name = role()
    adopted.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON terminal_acquirer TO {name}")
    adopted.execute("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC")  # as hardened servers have it
    application, source = connect(user=name), connect()
    oid = one(adopted, "SELECT 'terminal_acquirer'::regclass::oid::int")
    source.execute("SELECT pg_advisory_lock(%s, %s)", [compactory_sql.WAKEUP_LOCK_CLASS, oid])
    application.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('N', 'A')")
    application.execute("UPDATE terminal_acquirer SET is_active = false")
    application.execute("DELETE FROM terminal_acquirer WHERE terminal_id = 'N'")
    application.execute("TRUNCATE terminal_acquirer")
    assert len(deleted(adopted)) == 11
    for statement in ("SELECT FROM", "DELETE FROM", "TRUNCATE"):
        with pytest.raises(InsufficientPrivilege):
            application.execute(f"{statement} compactory.deleted_rows")
    with pytest.raises(InsufficientPrivilege):
        application.execute("SELECT compactory.wake_source()")
    application.close()


def test_a_search_path_of_the_writer_changes_nothing(
    adopted: psycopg.Connection, role: Callable[[], str], connect: Callable[..., psycopg.Connection]
):
    name = role()
    adopted.execute(f"GRANT ALL ON terminal_acquirer TO {name}; CREATE SCHEMA evil AUTHORIZATION {name}")
    writer = connect(user=name)
    writer.execute("CREATE FUNCTION evil.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '5'::xid8 $$")
    writer.execute("""CREATE FUNCTION evil.eq(text, text) RETURNS bool LANGUAGE sql AS 'SELECT false';
                      CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.eq)""")
    writer.execute("SET search_path = evil, public, pg_catalog")
    writer.execute("UPDATE terminal_acquirer SET is_active = false, updated_date = '2000-01-01'")
    assert (
        one(adopted, "SELECT count(*) FROM terminal_acquirer WHERE updated_xid = '5' OR updated_date < '2001-01-01'")
        == 0
    )
    writer.close()


def test_prepared_transactions(
    terminals: psycopg.Connection, connect: Callable[..., psycopg.Connection], database: str
):
    """A transaction that sent NOTIFY can't be prepared; --no-notify leaves it out, and takes it away again."""
    adopt(terminals, TERMINALS)
    assert inspect(terminals, "terminal_acquirer").notify
    source, writer = connect(), connect()
    oid = one(terminals, "SELECT 'terminal_acquirer'::regclass::oid::int")
    source.execute("SELECT pg_advisory_lock(%s, %s)", [compactory_sql.WAKEUP_LOCK_CLASS, oid])
    gid = database.rsplit("/", 1)[1]
    write = "BEGIN; UPDATE terminal_acquirer SET acquirer_id = 'P' WHERE terminal_id = 'T1'"
    writer.execute(write)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
        writer.execute(f"PREPARE TRANSACTION '{gid}'")
    done = adopt(terminals, Adoption(table="terminal_acquirer", key=("terminal_id",), active="is_active", notify=False))
    assert "drop trigger zz_compactory_notify on public.terminal_acquirer" in [step.title for step in done]
    found = inspect(terminals, "terminal_acquirer")
    assert (found.adopted, found.notify, found.problems) == (True, False, ())
    writer.execute(write)
    stamp = one(writer, "SELECT pg_current_xact_id()")
    writer.execute(f"PREPARE TRANSACTION '{gid}'")
    terminals.execute(f"COMMIT PREPARED '{gid}'")
    assert one(terminals, "SELECT updated_xid FROM terminal_acquirer WHERE acquirer_id = 'P'") == stamp


def test_the_articles_own_triggers_may_stay(terminals: psycopg.Connection):
    adopt(terminals, TERMINALS)
    with pytest.raises(RaiseException, match="terminal_id cannot be changed"):
        terminals.execute("UPDATE terminal_acquirer SET terminal_id = 'X'")
    with pytest.raises(RaiseException, match=REFUSED):
        terminals.execute("DELETE FROM terminal_acquirer")
    terminals.execute("UPDATE terminal_acquirer SET is_active = false WHERE terminal_id = 'T1'")
    terminals.execute("DELETE FROM terminal_acquirer WHERE terminal_id = 'T1'")
    assert deleted(terminals) == ["T1"]


def test_the_shipped_table_alone_keeps_the_articles_promises(terminals: psycopg.Connection):
    with pytest.raises(RaiseException, match=r"^terminal_id cannot be changed"):
        terminals.execute("UPDATE terminal_acquirer SET terminal_id = 'X'")
    with pytest.raises(RaiseException, match=REFUSED):
        terminals.execute("DELETE FROM terminal_acquirer")
    with pytest.raises(UniqueViolation):
        terminals.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'B')")
    terminals.execute("SET timezone = 'Asia/Kolkata'")
    terminals.execute("UPDATE terminal_acquirer SET is_active = false WHERE terminal_id = 'T1'")
    terminals.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'B')")
    apart = "updated_date - now() AT TIME ZONE 'utc' NOT BETWEEN '-1 minute' AND '1 minute'"
    assert one(terminals, f"SELECT count(*) FROM terminal_acquirer WHERE {apart}") == 0
    terminals.execute("DELETE FROM terminal_acquirer WHERE NOT is_active")
