"""The stamping trigger's condition: it spares calls of the function, and changes nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.schema import Adoption, adopt, inspect
from tests.source.workload import wait_until
from tests.stack.postgres_copies import new_server

from .conftest import REGIONS, TERMINALS, dump, one, psql

UTC, ZONED = "current_timestamp AT TIME ZONE 'utc'", "current_timestamp"
PLAIN = "CREATE TABLE {table} (id int, k text, v int, part text, way text, updated_date %s)"
DEFAULT = f"timestamp NOT NULL DEFAULT ({UTC})"

PARTS = f"""
    {PLAIN % DEFAULT} PARTITION BY LIST (part);
    CREATE TABLE {{table}}_x (updated_date {DEFAULT}, gone int, way text, part text, id int, v int, k text);
    ALTER TABLE {{table}}_x DROP COLUMN gone;
    ALTER TABLE {{table}} ATTACH PARTITION {{table}}_x FOR VALUES IN ('x');
    CREATE TABLE {{table}}_rest PARTITION OF {{table}} DEFAULT PARTITION BY HASH (k);
    CREATE TABLE {{table}}_rest_0 PARTITION OF {{table}}_rest FOR VALUES WITH (MODULUS 1, REMAINDER 0);
"""
COMPUTED = ", seen text GENERATED ALWAYS AS (updated_xid::text) STORED, late bool GENERATED ALWAYS AS "
MEDDLE = f"""
    CREATE FUNCTION {{table}}_meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        CASE NEW.way WHEN 'no xid' THEN NEW.updated_xid := NULL; WHEN 'old xid' THEN NEW.updated_xid := '5';
                     WHEN 'no date' THEN NEW.updated_date := NULL; WHEN 'old date' THEN NEW.updated_date := '2001-1-1';
                     WHEN 'new' THEN NEW.updated_xid := pg_current_xact_id(); NEW.updated_date := {UTC}; ELSE END CASE;
        RETURN NEW; END $$;
    CREATE TRIGGER a BEFORE INSERT OR UPDATE ON {{table}} FOR EACH ROW EXECUTE FUNCTION {{table}}_meddle();
"""
SHAPES = {
    "UTC": PLAIN % DEFAULT,
    "an instant": PLAIN % "timestamptz NOT NULL DEFAULT now()",
    "milliseconds": PLAIN % "timestamptz(3) NOT NULL DEFAULT now()",
    "no default": PLAIN % "timestamp",
    "another default": PLAIN % "timestamp NOT NULL DEFAULT '2001-01-01'",
    "local time": PLAIN % "timestamp DEFAULT now()",
    "a domain": f"CREATE DOMAIN {{table}}_date AS timestamp DEFAULT ({UTC}) CHECK (VALUE <> '2002-01-01');"
    + PLAIN % "{table}_date",
    "computed from stamps": PLAIN % f"{DEFAULT}, updated_xid xid8 {COMPUTED} (updated_date > '2010-01-01') STORED",
    "changed by another trigger": PLAIN % DEFAULT + ";" + MEDDLE,
    "partitions": PARTS,
}

PLACES = {"a": 1, "b": 2, "c": 3, "d": 4}
KEYS = st.sampled_from(list(PLACES))
XIDS = st.sampled_from(["", "NULL", "'5'", "DEFAULT", "pg_current_xact_id()"])
DATES = st.sampled_from(["", "NULL", "'2001-01-01'", "'2002-01-01'", "'infinity'", "DEFAULT", UTC, ZONED])
PART = st.sampled_from(["", "NULL", "'x'", "'y'"])
WAYS = st.sampled_from(["", "NULL", "'no xid'", "'old xid'", "'no date'", "'old date'", "'new'"])


@dataclass(frozen=True, kw_only=True)
class Write:
    """A statement, what COPY sends after it, and whether it is taken back with its savepoint."""

    text: str
    data: str = ""
    undone: bool = False

    def on(self, connection: psycopg.Connection, table: str) -> str | None:
        """Run it; the code of the error that it ends with."""
        text = self.text.replace("{table}", table).encode()
        try:
            with connection.transaction(force_rollback=self.undone):
                if self.data:
                    with connection.cursor().copy(text) as copy:
                        copy.write(self.data)
                else:
                    connection.execute(text)
        except psycopg.Error as error:
            return error.sqlstate
        return None


@st.composite
def given_columns(draw: st.DrawFn) -> dict[str, str]:
    """Values of columns that a statement names."""
    drawn = {"updated_xid": draw(XIDS), "updated_date": draw(DATES), "part": draw(PART), "way": draw(WAYS)}
    return {name: value for name, value in drawn.items() if value}


@st.composite
def inserts(draw: st.DrawFn) -> Write:
    key, columns = draw(KEYS), draw(given_columns())
    values = {"id": str(PLACES[key]), "k": f"'{key}'", "v": "0", **columns}
    text = f"INSERT INTO {{table}} ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    if draw(st.booleans()):
        proposed = draw(st.sampled_from([[], ["updated_date"], ["updated_xid"], ["updated_xid", "updated_date"]]))
        changes = {**draw(given_columns()), **{name: f"EXCLUDED.{name}" for name in proposed}}
        text += f" ON CONFLICT (k) DO UPDATE SET {assigned(changes)}"
    return Write(text=text, undone=draw(st.booleans()))


@st.composite
def updates(draw: st.DrawFn) -> Write:
    where = draw(st.sampled_from(["true", *(f"k = '{key}'" for key in PLACES)]))
    text = f"UPDATE {{table}} SET {assigned(draw(given_columns()))} WHERE {where}"
    return Write(text=text, undone=draw(st.booleans()))


@st.composite
def copies(draw: st.DrawFn) -> Write:
    key = draw(KEYS)
    drawn = {
        "updated_xid": draw(st.sampled_from(["", "\\N", "5"])),
        "updated_date": draw(st.sampled_from(["", "\\N", "2001-01-01"])),
    }
    values = {"id": str(PLACES[key]), "k": key, **{name: value for name, value in drawn.items() if value}}
    return Write(text=f"COPY {{table}} ({', '.join(values)}) FROM STDIN", data="\t".join(values.values()) + "\n")


def assigned(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in {"v": "1", **columns}.items())


SETTINGS = st.sampled_from(["session_replication_role = replica", "timezone = 'Asia/Kolkata'", "timezone = 'UTC'"])
STATEMENTS = st.one_of(
    inserts(), updates(), copies(), st.builds(Write, text=SETTINGS.map(lambda setting: f"SET LOCAL {setting}"))
)
TRANSACTIONS = st.lists(st.lists(STATEMENTS, min_size=1, max_size=6), min_size=1, max_size=4)


def without_condition(connection: psycopg.Connection, table: str) -> None:
    """Replace the stamping trigger of a table by one without a condition."""
    name = one(connection, "SELECT tgfoid::regproc::text FROM pg_trigger WHERE tgrelid = %s::regclass"
               " AND tgname = 'zz_compactory_stamp'", table)  # fmt: skip
    connection.execute(f"DROP TRIGGER zz_compactory_stamp ON {table}")
    connection.execute(f"CREATE TRIGGER zz_compactory_stamp BEFORE INSERT OR UPDATE ON {table}"
                       f" FOR EACH ROW EXECUTE FUNCTION {name}()")  # fmt: skip
    tree = f"SELECT relid::regclass FROM pg_partition_tree('{table}')"
    for (member,) in connection.execute(f"{tree} UNION SELECT '{table}'::regclass").fetchall():
        connection.execute(f"ALTER TABLE ONLY {member} ENABLE ALWAYS TRIGGER zz_compactory_stamp")


def calls(connection: psycopg.Connection, statement: str) -> int:
    """How often the stamping trigger's function is called."""
    plan = one(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
    assert isinstance(plan, list)
    found = [each["Calls"] for each in plan[0]["Triggers"] if each["Trigger Name"] == "zz_compactory_stamp"]
    return int(sum(found))


@pytest.fixture(params=list(SHAPES))
def pair(request: pytest.FixtureRequest, db: psycopg.Connection) -> psycopg.Connection:
    """Tables "new", as adopted, and "old", which differs in the condition alone."""
    for table in ("new", "old"):
        db.execute(SHAPES[request.param].replace("{table}", table))
        adopt(db, Adoption(table=table, key=("k",)))
        if request.param == "no default":
            db.execute(f"ALTER TABLE {table} ALTER COLUMN updated_xid DROP DEFAULT")
    without_condition(db, "old")
    return db


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(transactions=TRANSACTIONS)
def test_rows_are_what_they_are_without_the_condition(pair: psycopg.Connection, transactions: list[list[Write]]):
    """Guarantee 8 holds as it does without the condition, whoever writes and however."""
    pair.execute("DELETE FROM new; DELETE FROM old")
    for writes in transactions:
        with pair.transaction():
            for write in writes:
                assert write.on(pair, "new") == write.on(pair, "old"), write
                assert rows(pair, "new") == rows(pair, "old"), write


def rows(connection: psycopg.Connection, table: str) -> list[tuple[object, ...]]:
    return connection.execute(f"SELECT id, to_jsonb(t) FROM {table} AS t ORDER BY 1, 2").fetchall()


def test_only_what_has_to_be_stamped_calls_the_function(adopted: psycopg.Connection):
    insert = "INSERT INTO terminal_acquirer (terminal_id, acquirer_id"
    assert calls(adopted, f"{insert}) SELECT 'N' || n, 'A' FROM generate_series(1, 9) n") == 0
    assert calls(adopted, f"{insert}, updated_date) VALUES ('O', 'A', '2001-01-01')") == 1
    assert calls(adopted, f"{insert}, updated_xid) VALUES ('P', 'A', '5')") == 1
    with adopted.transaction():
        assert calls(adopted, "UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE terminal_id <> 'O'") == 20
        assert calls(adopted, "UPDATE terminal_acquirer SET acquirer_id = 'C' WHERE terminal_id <> 'O'") == 0
        assert calls(adopted, "UPDATE terminal_acquirer SET updated_date = '2001-01-01'") == 21


def test_a_stamping_trigger_without_its_condition_is_replaced(database: str, regions: psycopg.Connection):
    adopt(regions, REGIONS)
    shape = dump(database)
    without_condition(regions, "terminal_region")
    found = inspect(regions, "terminal_region")
    assert not found.adopted
    assert found.problems == ("public.terminal_region: trigger zz_compactory_stamp is not as it should be",)
    adopt(regions, REGIONS)
    assert dump(database) == shape


@pytest.mark.parametrize("name", ["updated_date", "updated_xid", "terminal_id"])
def test_a_condition_on_a_column_that_another_one_replaced(adopted: psycopg.Connection, name: str):
    """The condition follows a column that is renamed; the functions go by its name."""
    adopted.execute(f"ALTER TABLE terminal_acquirer RENAME COLUMN {name} TO before")
    adopted.execute(f"ALTER TABLE terminal_acquirer ADD COLUMN {name} {{}} NOT NULL DEFAULT {{}}".format(
        *{"updated_date": ("timestamp", f"({UTC})"), "updated_xid": ("xid8", "pg_current_xact_id()"),
          "terminal_id": ("text", "gen_random_uuid()")}[name]))  # fmt: skip
    found = inspect(adopted, "terminal_acquirer")
    trigger = "key" if name == "terminal_id" else "stamp"
    assert not found.adopted
    assert f"public.terminal_acquirer: trigger zz_compactory_{trigger} is not as it should be" in found.problems
    adopt(adopted, TERMINALS)
    assert inspect(adopted, "terminal_acquirer").problems == ()


def test_a_column_that_a_condition_names_takes_another_type(adopted: psycopg.Connection):
    alter = "ALTER TABLE terminal_acquirer ALTER COLUMN updated_date TYPE timestamptz"
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="used in a trigger definition"):
        adopted.execute(alter)
    for name in ("stamp", "key"):
        adopted.execute(f"DROP TRIGGER zz_compactory_{name} ON terminal_acquirer")
    adopted.execute(alter)
    adopt(adopted, TERMINALS)
    assert inspect(adopted, "terminal_acquirer").problems == ()
    assert calls(adopted, "UPDATE terminal_acquirer SET acquirer_id = 'B'") == 10


def test_the_condition_comes_back_from_a_dump(
    database: str, adopted: psycopg.Connection, new_database: Callable[[], str]
):
    restored = new_database()
    psql(restored, dump(database))
    assert dump(restored) == dump(database)
    with psycopg.connect(restored, autocommit=True) as connection:
        assert inspect(connection, "public.terminal_acquirer").problems == ()
        insert = "INSERT INTO public.terminal_acquirer (terminal_id, acquirer_id) VALUES ('N', 'A')"
        assert calls(connection, insert) == 0


def test_a_search_path_of_the_adopter_changes_nothing(database: str, adopted: psycopg.Connection):
    shape = dump(database, "--schema=public")
    adopted.execute("""
        CREATE SCHEMA evil;
        CREATE FUNCTION evil.xid8eq(xid8, xid8) RETURNS bool LANGUAGE sql AS 'SELECT true';
        CREATE FUNCTION evil.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '5'::xid8 $$;
        CREATE FUNCTION evil.timestamp_eq(timestamp, timestamp) RETURNS bool LANGUAGE sql AS 'SELECT true';
        CREATE FUNCTION evil.timezone(text, timestamptz) RETURNS timestamp LANGUAGE sql AS 'SELECT $2::timestamp'""")
    adopted.execute("DROP TRIGGER zz_compactory_stamp ON terminal_acquirer")
    adopted.execute("SET search_path = evil, pg_catalog, public")
    adopt(adopted, replace(TERMINALS, table="public.terminal_acquirer"))
    assert dump(database, "--schema=public") == shape


@pytest.fixture
def logical() -> Iterator[PostgresServer]:
    """A server that can replicate what it decodes."""
    server = new_server(settings={"fsync": "off", "wal_level": "logical"})
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_rows_that_logical_replication_applies(logical: PostgresServer):
    """Guarantees 8, 10 on a subscriber: rows bear the stamps of what applied them, deletions are logged."""
    with psycopg.connect(logical.url(), autocommit=True) as publisher:
        publisher.execute("CREATE DATABASE subscriber")
        with psycopg.connect(logical.url("subscriber"), autocommit=True) as subscriber:
            subscribe(publisher, subscriber)
            insert = "INSERT INTO {0} (id, k) SELECT n, n FROM generate_series(1, 5) n; "
            insert += "INSERT INTO {0} (id, k, updated_date) VALUES (6, 6, '2001-01-01')"
            update = "UPDATE {0} SET v = 2, updated_date = '2001-01-01' WHERE id < 3"
            for write in (insert, update):
                publisher.execute(f"{write.format('new')}; {write.format('old')}".encode())
            wait_until(lambda: one(subscriber, "SELECT count(v) FROM old") == 2, what="the updates applied")
            assert rows(subscriber, "new") == rows(subscriber, "old")
            assert one(subscriber, "SELECT bool_and(updated_xid::text = xmin::text) FROM new")
            assert one(subscriber, "SELECT count(*) FROM new WHERE updated_date = '2001-01-01'") == 1
            publisher.execute("INSERT INTO parts SELECT n, n FROM generate_series(1, 3) n")
            publisher.execute("DELETE FROM parts WHERE id < 3; DELETE FROM new WHERE id = 1")
            wait_until(lambda: one(subscriber, "SELECT min(id) FROM new") == 2, what="the deletions applied")
            deleted = "array_agg(\"row\" ->> 'id' ORDER BY id)"
            log = f'SELECT "table"::text, {deleted} FROM compactory.deleted_rows GROUP BY 1'
            assert dict(subscriber.execute(log)) == {"new": ["1"], "parts": ["1", "2"]}


def subscribe(publisher: psycopg.Connection, subscriber: psycopg.Connection) -> None:
    """Tables "new" and "old" there, filled from tables with stamps of their own here."""
    for table in ("new", "old"):
        text = f"{SHAPES['UTC']}; ALTER TABLE {{table}} ADD PRIMARY KEY (id)".replace("{table}", table)
        publisher.execute(f"{text}; ALTER TABLE {table} ADD COLUMN updated_xid xid8 DEFAULT pg_current_xact_id()")
        subscriber.execute(text)
        adopt(subscriber, Adoption(table=table, key=("k",)))
    without_condition(subscriber, "old")
    columns = "(id int PRIMARY KEY, k text NOT NULL, updated_date timestamp NOT NULL DEFAULT now())"
    publisher.execute(f"CREATE TABLE parts {columns}")
    subscriber.execute(f"CREATE TABLE parts {columns} PARTITION BY HASH (id)")
    subscriber.execute("CREATE TABLE part PARTITION OF parts FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    adopt(subscriber, Adoption(table="parts", key=("k",)))
    publisher.execute("CREATE PUBLICATION p FOR ALL TABLES")
    publisher.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    subscriber.execute(
        f"CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port={publisher.info.port} user=postgres' PUBLICATION p"
        " WITH (create_slot = false, slot_name = 's', copy_data = false)"
    )
