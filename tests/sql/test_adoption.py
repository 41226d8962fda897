"""`adopt`: what it refuses, what it leaves behind, and that a second run changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.schema import Adoption, Roles, adopt, inspect, install, plan, plan_grants

from .conftest import REGIONS, TERMINALS, column, dump, one, psql

WEIRD = """
    CREATE SCHEMA "My Schema";
    CREATE TABLE "My Schema"."Ünï ""q"".t'" (
        "I d" int GENERATED ALWAYS AS IDENTITY, "K'ey\\é" text NOT NULL, "from" int NOT NULL, "Is Active" bool,
        "Up.dated" timestamptz(3) NOT NULL DEFAULT now());
    INSERT INTO "My Schema"."Ünï ""q"".t'" ("K'ey\\é", "from", "Is Active") VALUES ('a', 1, true), ('b', 2, false);
"""
WEIRD_ADOPTION = Adoption(
    table='"My Schema"."Ünï ""q"".t\'"', key=("K'ey\\é", "from"), active="Is Active", timestamp="Up.dated", id="I d"
)


def problems(connection: psycopg.Connection, adoption: Adoption) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(connection, adoption)
    return str(caught.value)


@pytest.mark.usefixtures("bare")
def test_a_second_run_says_so_and_changes_nothing(database: str, terminals: psycopg.Connection):
    told: list[str] = []
    done = adopt(terminals, TERMINALS, told.append)
    migrated = [title for title in told if title.startswith("applied migration")]
    assert [step.title for step in done] == told[len(migrated) :]
    assert migrated
    before, rows = dump(database), terminals.execute("SELECT * FROM terminal_acquirer").fetchall()
    assert adopt(terminals, TERMINALS, told.append) == []
    assert dump(database) == before
    assert terminals.execute("SELECT * FROM terminal_acquirer").fetchall() == rows
    assert plan(terminals, TERMINALS).script() == "-- Nothing to do.\n"


def test_existing_rows_get_the_adopting_transaction_without_being_rewritten(terminals: psycopg.Connection):
    before = one(terminals, "SELECT pg_relation_filenode('terminal_acquirer')")
    oldest = one(terminals, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    adopt(terminals, TERMINALS)
    assert one(terminals, "SELECT pg_relation_filenode('terminal_acquirer')") == before
    stamps = column(terminals, "SELECT DISTINCT updated_xid::text::bigint FROM terminal_acquirer")
    assert len(stamps) == 1
    assert stamps[0] >= oldest
    default = "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'terminal_acquirer'::regclass"
    assert "pg_current_xact_id()" in column(terminals, default)


def test_an_index_of_the_users_own_serves_as_well(terminals: psycopg.Connection):
    terminals.execute("CREATE INDEX mine ON terminal_acquirer (updated_date, id, acquirer_id)")
    titles = [step.title for step in plan(terminals, TERMINALS).steps]
    assert [title for title in titles if "index" in title] == [
        "build index terminal_acquirer_compactory_xid on public.terminal_acquirer"
    ]


@pytest.mark.parametrize("predicate", ["is_active", "is_active = true", "is_active IS NOT FALSE", "true"])
def test_unique_indexes_that_hold_all_active_rows_are_recognised(terminals: psycopg.Connection, predicate: str):
    terminals.execute("DROP INDEX terminal_acquirer_unique_idx")
    terminals.execute(f"CREATE UNIQUE INDEX ON terminal_acquirer (terminal_id) WHERE {predicate}")
    assert not any(step.unique for step in plan(terminals, TERMINALS).steps)


@pytest.mark.parametrize("predicate", ["is_active IS FALSE", "acquirer_id = 'A'"])
def test_unique_indexes_that_do_not_are_not(terminals: psycopg.Connection, predicate: str):
    terminals.execute("DROP INDEX terminal_acquirer_unique_idx")
    terminals.execute(f"CREATE UNIQUE INDEX ON terminal_acquirer (terminal_id) WHERE {predicate}")
    adopt(terminals, TERMINALS)
    with pytest.raises(psycopg.errors.UniqueViolation):
        terminals.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'B')")


def test_null_is_active_for_the_unique_index(terminals: psycopg.Connection):
    """Where the column may be NULL, an index of the rows with TRUE does not keep active rows unique."""
    terminals.execute("ALTER TABLE terminal_acquirer ALTER is_active DROP NOT NULL")
    terminals.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id, is_active) VALUES ('T1', 'B', NULL)")
    with pytest.raises(ConfigError, match=r"several active rows \(is_active is not false\).*T1.*\(2 rows\)"):
        adopt(terminals, TERMINALS)
    terminals.execute("UPDATE terminal_acquirer SET is_active = false WHERE is_active IS NULL")
    assert any("build index terminal_acquirer_compactory_key" in step.title for step in adopt(terminals, TERMINALS))
    with pytest.raises(psycopg.errors.UniqueViolation):
        terminals.execute(
            "INSERT INTO terminal_acquirer (terminal_id, acquirer_id, is_active) VALUES ('T1', 'B', NULL)"
        )
    assert adopt(terminals, TERMINALS) == []


def test_names_of_every_kind(database: str, db: psycopg.Connection):
    db.execute(WEIRD)
    adopt(db, WEIRD_ADOPTION)
    table = '"My Schema"."Ünï ""q"".t\'"'
    db.execute(f'UPDATE {table} SET "Is Active" = false')
    db.execute(f"DELETE FROM {table} WHERE \"K'ey\\é\" = 'b'")
    assert one(db, """SELECT "row" ->> 'K''ey\\é' FROM compactory.deleted_rows""") == "b"
    assert one(db, """SELECT "table"::text FROM compactory.deleted_rows""") == table
    with pytest.raises(psycopg.errors.RaiseException, match=r"^from cannot be changed"):
        db.execute(f'UPDATE {table} SET "from" = 5')
    before = dump(database)
    assert adopt(db, WEIRD_ADOPTION) == []
    assert dump(database) == before


@pytest.mark.parametrize(
    "spelling", ["terminal_acquirer", "public.terminal_acquirer", "Terminal_Acquirer", '"public"."terminal_acquirer"']
)
def test_spellings_of_a_name(terminals: psycopg.Connection, spelling: str):
    assert plan(terminals, replace(TERMINALS, table=spelling)).table == "public.terminal_acquirer"


def test_the_exact_spelling_wins_over_the_folded_one(terminals: psycopg.Connection):
    terminals.execute('CREATE TABLE "Terminal_Acquirer" (LIKE terminal_acquirer INCLUDING ALL)')
    assert plan(terminals, replace(TERMINALS, table="Terminal_Acquirer")).table == 'public."Terminal_Acquirer"'
    with pytest.raises(ConfigError, match="there is no table"):
        plan(terminals, replace(TERMINALS, table='"TERMINAL_ACQUIRER"'))


def test_names_longer_than_postgres_keeps_them(db: psycopg.Connection):
    stems = ["é" * 31 + "x", "é" * 31]
    for stem in stems:
        db.execute(f'CREATE TABLE "{stem}" (id int, k text, "{stem}" timestamp NOT NULL DEFAULT now())')
        adopt(db, Adoption(table=stem, key=("k",), timestamp=stem))
        assert inspect(db, stem).problems == ()
        db.execute(f"""INSERT INTO "{stem}" VALUES (1, 'a')""")
        db.execute(f"""UPDATE "{stem}" SET k = k""")


def test_the_printed_plan_runs_in_psql_and_leaves_the_same(new_database: Callable[[], str]):
    done, printed = new_database(), new_database()
    for url in (done, printed):
        psql(url, WEIRD)
    with psycopg.connect(done, autocommit=True) as connection:
        adopt(connection, WEIRD_ADOPTION)
    with psycopg.connect(printed, autocommit=True) as connection:
        script = plan(connection, WEIRD_ADOPTION).script()
        assert one(connection, "SELECT to_regnamespace('compactory')") is None  # a plan changes nothing
    psql(printed, script)
    assert dump(printed) == dump(done)
    with psycopg.connect(printed, autocommit=True) as connection:
        assert adopt(connection, WEIRD_ADOPTION) == []


@pytest.mark.usefixtures("bare")
def test_everything_wrong_is_told_at_once_with_the_remedy(terminals: psycopg.Connection):
    told = problems(
        terminals,
        Adoption(table="terminal_acquirer", key=("terminalid",), active="acquirer_id", timestamp="changed", id="no"),
    )
    assert "has no column 'terminalid' (did you mean 'terminal_id'?)" in told
    assert 'ADD COLUMN "changed" timestamp NOT NULL DEFAULT timezone' in told
    assert 'ADD COLUMN "no" bigint GENERATED BY DEFAULT AS IDENTITY' in told
    assert "column 'acquirer_id' of public.terminal_acquirer is text; as active column it must be boolean" in told
    assert one(terminals, "SELECT to_regnamespace('compactory')") is None


def test_an_unknown_table_is_answered_with_the_nearest(terminals: psycopg.Connection):
    assert "did you mean terminal_acquirer" in problems(terminals, replace(TERMINALS, table="terminal_aquirer"))
    assert "is not a table name" in problems(terminals, replace(TERMINALS, table='a."b'))
    assert "no key column" in problems(terminals, replace(TERMINALS, key=()))


def test_rows_that_violate_the_key_are_listed_before_anything_is_changed(database: str, terminals: psycopg.Connection):
    terminals.execute("DROP INDEX terminal_acquirer_unique_idx")
    terminals.execute(
        "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'B'), ('T1', 'C'), ('T2', 'B')"
    )
    before = dump(database)
    with pytest.raises(
        ConfigError, match=r'\["T1"\] \(3 rows\), \["T2"\] \(2 rows\)\. Make all but one of each inactive'
    ):
        adopt(terminals, TERMINALS)
    assert dump(database) == before
    terminals.execute("UPDATE terminal_acquirer SET is_active = false WHERE acquirer_id <> 'A'")
    assert adopt(terminals, TERMINALS)


def test_nulls_where_the_source_needs_values_are_refused(terminals: psycopg.Connection):
    terminals.execute("ALTER TABLE terminal_acquirer ALTER COLUMN updated_date DROP NOT NULL")
    terminals.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id, updated_date) VALUES ('N', 'A', NULL)")
    assert "column updated_date of public.terminal_acquirer is NULL in 1 row, and" in problems(terminals, TERMINALS)


@pytest.mark.parametrize(
    ("statement", "table", "problem"),
    [
        ("CREATE VIEW v AS SELECT 1 AS id", "v", "is not a table"),
        ("CREATE UNLOGGED TABLE u (id int, k int, updated_date timestamp)", "u", "temporary or unlogged"),
        ("CREATE TEMP TABLE u (id int, k int, updated_date timestamp)", "u", "temporary or unlogged"),
        ("CREATE TABLE c () INHERITS (terminal_acquirer)", "terminal_acquirer", "inheritance"),
        ("CREATE TABLE c () INHERITS (terminal_acquirer)", "c", "inheritance"),
        ("SELECT 1", "pg_catalog.pg_class", "belongs to the system"),
        ("ALTER TABLE terminal_acquirer ADD updated_xid int", "terminal_acquirer", "RENAME COLUMN updated_xid TO"),
    ],
)
def test_what_can_not_be_adopted(terminals: psycopg.Connection, statement: str, table: str, problem: str):
    terminals.execute(statement)
    assert problem in problems(terminals, replace(TERMINALS, table=table))


@pytest.mark.parametrize(
    ("kind", "refused"),
    [("point", True), ("json", True), ("point[]", True), ("varchar(9)", False), ("text[]", False), ("word", False),
     ("citizen", False), ("int4range", False), ("cidr", False), ("char(3)", False)],
)  # fmt: skip
def test_a_key_that_no_index_can_keep_unique_is_refused(db: psycopg.Connection, kind: str, refused: bool):
    db.execute("CREATE DOMAIN word AS text; CREATE TYPE citizen AS ENUM ('a')")
    db.execute(f"CREATE TABLE t (id int PRIMARY KEY, k {kind} NOT NULL, updated_date timestamp NOT NULL)")
    asked = Adoption(table="t", key=("k",))
    if refused:
        assert "has no order, so that no index can keep it unique" in problems(db, asked)
    else:
        adopt(db, asked)
        assert inspect(db, "t").problems == ()


def test_adopting_again_after_the_schema_was_dropped(adopted: psycopg.Connection):
    adopted.execute("DROP SCHEMA compactory CASCADE")
    adopt(adopted, TERMINALS)
    assert inspect(adopted, "terminal_acquirer").problems == ()


def test_a_generated_key_column_is_refused(terminals: psycopg.Connection):
    terminals.execute("ALTER TABLE terminal_acquirer ADD big text GENERATED ALWAYS AS (upper(terminal_id)) STORED")
    assert "'big' of public.terminal_acquirer is generated" in problems(terminals, replace(TERMINALS, key=("big",)))


def test_a_partition_is_referred_to_its_root(regions: psycopg.Connection):
    assert "region_b is a partition: adopt terminal_region" in problems(regions, replace(REGIONS, table="region_b"))


def test_no_rights_no_adoption(
    terminals: psycopg.Connection, role: Callable[[], str], connect: Callable[..., psycopg.Connection]
):
    install(terminals)
    stranger = connect(user=role())
    told = problems(stranger, TERMINALS)
    assert "does not own public.terminal_acquirer" in told
    assert "may not use schema compactory" in told


def test_nobody_is_advised_to_make_a_role_a_member_of_a_superuser(
    terminals: psycopg.Connection, role: Callable[[], str], connect: Callable[..., psycopg.Connection]
):
    """The schema and the table belong to a superuser; the remedies are those of ``plan_grants``."""
    install(terminals)
    owner = role()
    told = problems(connect(user=owner), TERMINALS)
    assert f"ALTER TABLE public.terminal_acquirer OWNER TO {owner}" in told
    assert "schema compactory belongs to postgres, a superuser: adopt as a superuser" in told
    assert "GRANT" not in told
    with pytest.raises(ConfigError) as refused:
        plan_grants(terminals, ["terminal_acquirer"], Roles(owner=owner))
    listed = "\n".join(refused.value.problems)
    assert f"ALTER TABLE public.terminal_acquirer OWNER TO {owner}" in listed
    assert f"schema compactory belongs to postgres, a superuser, whose rights {owner} would need" in listed
    terminals.execute(f"ALTER TABLE terminal_acquirer OWNER TO {owner}")
    assert "adopt as a superuser" in problems(connect(user=owner), TERMINALS)
    assert plan_grants(terminals, ["terminal_acquirer"], Roles(owner="postgres"))


def test_who_gets_the_rights_of_the_schemas_owner_may_adopt(
    terminals: psycopg.Connection, role: Callable[[], str], connect: Callable[..., psycopg.Connection]
):
    """An ordinary owner's rights may be given: ``plan_grants`` does what the message of ``plan`` says."""
    installer, owner = role(), role()
    install(terminals)
    terminals.execute(f"ALTER SCHEMA compactory OWNER TO {installer}; GRANT USAGE, CREATE ON SCHEMA public TO {owner}")
    terminals.execute(
        f"ALTER TABLE terminal_acquirer OWNER TO {owner}; GRANT SELECT ON terminal_acquirer TO {installer}"
    )
    assert f"GRANT {installer} TO {owner}" in problems(connect(user=owner), TERMINALS)
    assert f"GRANT {installer} TO {owner}" in plan_grants(terminals, ["terminal_acquirer"], Roles(owner=owner))


@pytest.mark.usefixtures("bare")
def test_the_owner_of_table_and_schema_adopts_without_being_superuser(
    terminals: psycopg.Connection, role: Callable[[], str], connect: Callable[..., psycopg.Connection], database: str
):
    owner = role()
    terminals.execute(f"ALTER TABLE terminal_acquirer OWNER TO {owner}")
    terminals.execute(f"GRANT CREATE ON DATABASE {database.rsplit('/', 1)[1]} TO {owner}")
    terminals.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {owner}")
    connection = connect(user=owner)
    assert adopt(connection, TERMINALS)
    connection.execute("UPDATE terminal_acquirer SET is_active = false")
    connection.execute("TRUNCATE terminal_acquirer")
    assert one(terminals, "SELECT count(*) FROM compactory.deleted_rows") == 10
    connection.close()


def test_a_caller_in_a_transaction_is_refused(
    terminals: psycopg.Connection, connect: Callable[..., psycopg.Connection]
):
    caller = connect(autocommit=False)
    caller.execute("SELECT 1")
    with pytest.raises(ValueError, match="in a transaction"):
        adopt(caller, TERMINALS)
    caller.rollback()
    assert adopt(caller, TERMINALS)
    assert caller.autocommit is False
    assert one(caller, "SELECT current_setting('lock_timeout')") == "0"


def test_another_key_replaces_triggers_and_index(db: psycopg.Connection):
    db.execute("CREATE TABLE t (id int, a text, b text, updated_date timestamp NOT NULL DEFAULT now())")
    adopt(db, Adoption(table="t", key=("a",)))
    db.execute("INSERT INTO t VALUES (1, 'x', 'y')")
    adopt(db, Adoption(table="t", key=("b",)))
    db.execute("UPDATE t SET a = 'z'")
    with pytest.raises(psycopg.errors.RaiseException, match="b cannot be changed"):
        db.execute("UPDATE t SET b = 'z'")
    assert "CREATE UNIQUE INDEX t_compactory_key ON public.t USING btree (b)" in column(
        db, "SELECT indexdef FROM pg_indexes WHERE tablename = 't'"
    )


def test_a_column_loosened_by_hand_is_mended(adopted: psycopg.Connection):
    adopted.execute("ALTER TABLE terminal_acquirer ALTER updated_xid DROP NOT NULL, ALTER updated_xid DROP DEFAULT")
    adopted.execute("ALTER TABLE terminal_acquirer DISABLE TRIGGER zz_compactory_stamp")
    adopted.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('N', 'A')")
    found = inspect(adopted, "terminal_acquirer")
    assert not found.adopted
    assert len(found.problems) == 3
    adopt(adopted, found.adoption)
    assert inspect(adopted, "terminal_acquirer").problems == ()
    assert one(adopted, "SELECT count(*) FROM terminal_acquirer WHERE updated_xid IS NULL") == 0


def test_stamps_of_another_server_are_made_afresh(adopted: psycopg.Connection):
    """After a dump is restored, ids that are yet to come would make rows look new for ever."""
    adopted.execute("ALTER TABLE terminal_acquirer DISABLE TRIGGER USER")
    adopted.execute("UPDATE terminal_acquirer SET updated_xid = '99999999999' WHERE terminal_id = 'T1'")
    adopted.execute("INSERT INTO compactory.deleted_rows VALUES (DEFAULT, 'terminal_acquirer', '{}', '99999999999')")
    for name in ("key", "stamp", "delete", "truncate", "notify"):
        adopted.execute(f"ALTER TABLE terminal_acquirer ENABLE ALWAYS TRIGGER zz_compactory_{name}")
    found = inspect(adopted, "terminal_acquirer")
    assert not found.adopted
    assert "transaction ids of another server" in found.problems[0]
    adopt(adopted, TERMINALS)
    assert inspect(adopted, "terminal_acquirer").problems == ()
    assert one(adopted, "SELECT bool_and(xid < pg_snapshot_xmax(pg_current_snapshot())) FROM compactory.deleted_rows")
