"""Migrations: applied once, in one order, by one installer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

import compactory_sql
from compactory.errors import ConfigError, Unreachable
from compactory_connectors.schema import adopt, install, status

from .conftest import TERMINALS, column, dump, one, psql

pytestmark = pytest.mark.usefixtures("bare")


def test_migrations_applied_twice_change_nothing(database: str, db: psycopg.Connection):
    assert [m.version for m in install(database)] == [m.version for m in compactory_sql.migrations()]
    before = dump(database), db.execute("SELECT * FROM compactory.migrations").fetchall()
    assert install(db) == []
    assert (dump(database), db.execute("SELECT * FROM compactory.migrations").fetchall()) == before


def test_a_date_style_of_the_role_is_no_obstacle(db: psycopg.Connection):
    install(db)
    db.execute("SET DateStyle = 'German, DMY'")
    assert install(db) == []
    assert all(migration.applied_at for migration in status(db).migrations)


def test_migrations_run_by_psql_equal_those_installed(new_database: Callable[[], str]):
    installed, scripted = new_database(), new_database()
    install(installed)
    psql(scripted, "\n".join(migration.script() for migration in compactory_sql.migrations()))
    assert dump(installed) == dump(scripted)
    assert install(scripted) == []


def test_a_database_of_the_first_version_gets_what_came_since(database: str, db: psycopg.Connection):
    first, *later = compactory_sql.migrations()
    db.execute(first.statements)
    assert install(db) == later
    assert one(db, "SELECT count(*) FROM compactory.jobs") == 0


def test_a_database_newer_than_the_code_is_refused(db: psycopg.Connection):
    install(db)
    db.execute("INSERT INTO compactory.migrations VALUES (99, 'later', 'abc')")
    with pytest.raises(ConfigError, match=r"migration 99 \(later\).*upgrade Compactory"):
        install(db)


def test_a_changed_migration_is_refused(db: psycopg.Connection):
    install(db)
    db.execute("UPDATE compactory.migrations SET checksum = repeat('0', 64)")
    with pytest.raises(ConfigError, match=r"migration 1 \(source\) was applied with another text"):
        status(db)


def test_install_joins_the_callers_transaction(connect: Callable[..., psycopg.Connection], db: psycopg.Connection):
    caller = connect(autocommit=False)
    caller.execute("SELECT 1")
    assert install(caller)
    assert one(db, "SELECT to_regclass('compactory.migrations')") is None
    caller.rollback()
    assert one(db, "SELECT to_regnamespace('compactory')") is None


def test_two_installers_at_once_apply_everything_once(connect: Callable[..., psycopg.Connection]):
    first, second, results = connect(autocommit=False), connect(), []
    first.execute("SELECT 1")
    install(first)
    other = threading.Thread(target=lambda: results.append(install(second)))
    other.start()
    watcher = connect()
    while not one(watcher, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
        assert other.is_alive()
    first.commit()
    other.join()
    assert results == [[]]


def test_default_privileges_of_the_installer_give_nobody_rights(
    db: psycopg.Connection, role: Callable[[], str], connect: Callable[..., psycopg.Connection]
):
    name = role()
    for kind in ("SCHEMAS", "TABLES", "SEQUENCES", "FUNCTIONS"):
        db.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO {name}")
    install(db)
    assert not one(db, "SELECT has_schema_privilege(%s, 'compactory', 'USAGE')", name)
    assert not one(db, "SELECT has_table_privilege(%s, 'compactory.deleted_rows', 'SELECT, INSERT, DELETE')", name)
    functions = "FROM pg_proc WHERE pronamespace = 'compactory'::regnamespace"
    assert column(db, f"SELECT proname {functions} AND has_function_privilege('{name}', oid, 'EXECUTE')") == []


def test_every_function_has_a_fixed_search_path_and_the_rights_of_its_owner(db: psycopg.Connection):
    install(db)
    ours = "FROM pg_proc WHERE pronamespace = 'compactory'::regnamespace"
    path = "'search_path=pg_catalog, pg_temp' = ANY(coalesce(proconfig, '{}'))"
    assert column(db, f"SELECT proname {ours} AND NOT {path}") == []
    assert column(db, f"SELECT proname {ours} AND prorettype = 'trigger'::regtype AND NOT prosecdef") == []


def test_functions_use_the_numbers_that_python_exports(db: psycopg.Connection):
    install(db)
    body = one(db, "SELECT prosrc FROM pg_proc WHERE proname = 'wake_source'")
    assert f"({compactory_sql.WAKEUP_LOCK_CLASS}, " in body
    assert f"'{compactory_sql.WAKEUP_CHANNEL}'" in body


def test_a_dump_is_restored_as_it_was(new_database: Callable[[], str]):
    first, second = new_database(), new_database()
    with psycopg.connect(first, autocommit=True) as connection:
        connection.execute(compactory_sql.read("templates/terminal_acquirer.sql"))
        adopt(connection, TERMINALS)
    psql(second, dump(first))
    assert dump(second) == dump(first)


def test_an_unreachable_server_and_a_wrong_address_are_told():
    with pytest.raises(Unreachable, match="was not reached"):
        install("postgresql://postgres@127.0.0.1:1/none")
    with pytest.raises(ConfigError, match="not a Postgres URL"):
        install("postgres-without-a-scheme")
