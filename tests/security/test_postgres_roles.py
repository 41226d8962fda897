"""Each component works with just its database rights, and says which one is missing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from compactory import GlobalStore
from compactory.errors import ConfigError
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.schema import Adoption, Roles, adopt, inspect, install, plan_grants
from compactory_connectors.source.config.connector import SoftDelete
from compactory_connectors.source.config.files import load_connector
from compactory_connectors.source.planning.planner import plan_tables
from compactory_connectors.source.postgres.server import Server
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.source.status.status import SourceState
from tests.security.conftest import TABLE, Tenancy
from tests.source.conftest import ARTICLE, Running, article_environment
from tests.source.workload import wait_until
from tests.stack.command import run_command

INSERT = "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'A1')"


def connector(tenancy: Tenancy, prefix: str = "", role: str = "source"):
    found = load_connector(ARTICLE, environment=article_environment(tenancy.url(getattr(tenancy.roles, role)), prefix))
    # A long interval: what arrives sooner was announced by NOTIFY.
    return replace(found, name=prefix or "c", poll_interval_ms=60_000, soft_delete=SoftDelete("is_active"))


def planned(tenancy: Tenancy, role: str = "source") -> list[str]:
    """The problems that a source of this role finds before it polls."""
    config = connector(tenancy, role=role)
    try:
        with postgres_errors(config.connection):
            server = Server.open(config.connection.conninfo)
            try:
                plan_tables(server, config)
            finally:
                server.close()
    except ConfigError as error:
        return error.problems
    return []


@pytest.fixture
def prefix(unique: Callable[[str], str]) -> str:
    return unique("rights") + "-"


@pytest.fixture
def running(tenancy: Tenancy, kafka: str, prefix: str) -> Iterator[Running]:
    """A source with its own role, on an adopted table."""
    tenancy.adopt()
    source = Running(Source(connector(tenancy, prefix), kafka))
    source.wait_for(SourceState.RUNNING)
    yield source
    source.stop()


def test_source_and_writer_need_no_more(tenancy: Tenancy, running: Running, kafka: str, prefix: str) -> None:
    writer = tenancy.connect(tenancy.roles.writer)
    with GlobalStore(kafka, [f"{prefix}terminal_acquirer"]) as store, writer:
        view = store[f"{prefix}terminal_acquirer"]
        writer.execute(INSERT)
        wait_until(lambda: view.get("1", {}).get("acquirerId") == "A1", what="the insert")
        writer.execute("UPDATE terminal_acquirer SET acquirer_id = 'A2'")
        wait_until(lambda: view["1"]["acquirerId"] == "A2", what="the update")
        writer.execute("UPDATE terminal_acquirer SET is_active = false")
        wait_until(lambda: "1" not in view, what="the soft delete")
        with writer.transaction():  # gone between two polls: only the log of deleted rows tells
            writer.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T2', 'A1')")
        wait_until(lambda: "2" in view, what="the second insert")
        with writer.transaction():
            writer.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 2")
            writer.execute("DELETE FROM terminal_acquirer WHERE id = 2")
        wait_until(lambda: "2" not in view, what="the hard delete")
    assert running.source.status().tables[0].adopted
    lease = running.source.status().lease
    assert lease is not None
    assert (lease.held, lease.kind, lease.lacks) == (True, "lease_table", None)


def test_a_table_left_as_it_is_needs_select_alone(tenancy: Tenancy, kafka: str, prefix: str) -> None:
    tenancy.run(INSERT, tenancy.roles.writer)
    Source(connector(tenancy, prefix), kafka).run(threading.Event(), once=True, timeout=20)
    with GlobalStore(kafka, [f"{prefix}terminal_acquirer"]) as store:
        assert store[f"{prefix}terminal_acquirer"]["1"]["terminalId"] == "T1"


def test_the_source_reads_and_nothing_else(tenancy: Tenancy) -> None:
    tenancy.adopt()
    with tenancy.connect(tenancy.roles.source) as source:
        for refused in (
            INSERT,
            "UPDATE terminal_acquirer SET acquirer_id = 'x'",
            "DELETE FROM terminal_acquirer",
            "TRUNCATE terminal_acquirer",
            "DELETE FROM compactory.deleted_rows",
            "SELECT * FROM compactory.migrations",
            "CREATE TABLE mine (id int)",
            "ALTER TABLE terminal_acquirer DISABLE TRIGGER ALL",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                source.execute(refused)


def test_the_writer_reaches_its_table_and_nothing_of_ours(tenancy: Tenancy) -> None:
    tenancy.adopt()
    with tenancy.connect(tenancy.roles.writer) as writer:
        for refused in (
            "TRUNCATE terminal_acquirer",
            "SELECT * FROM compactory.deleted_rows",
            "INSERT INTO compactory.deleted_rows (\"table\", \"row\") VALUES ('terminal_acquirer', '{}')",
            "SET session_replication_role = replica",
            "ALTER TABLE terminal_acquirer DISABLE TRIGGER ALL",
            "CREATE TABLE mine (id int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                writer.execute(refused)


def test_the_owner_installs_and_adopts_without_being_superuser(tenancy: Tenancy) -> None:
    with tenancy.connect(tenancy.roles.owner) as owner:
        assert install(owner)
        assert adopt(owner, Adoption(table=TABLE, key=("terminal_id",), active="is_active"))
        assert inspect(owner, TABLE).problems == ()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute("CREATE ROLE another")


def test_an_owner_who_may_not_create_a_schema_is_told(tenancy: Tenancy) -> None:
    tenancy.run(f'REVOKE CREATE ON DATABASE "{tenancy.database}" FROM "{tenancy.roles.owner}"')
    with (
        tenancy.connect(tenancy.roles.owner) as owner,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"permission denied for database {tenancy.database}"),
    ):
        install(owner)


def test_an_adopter_who_does_not_own_the_table_is_told(tenancy: Tenancy) -> None:
    with (
        tenancy.connect(tenancy.roles.writer) as writer,
        pytest.raises(ConfigError, match="does not own public"),
    ):
        adopt(writer, Adoption(table=TABLE, key=("terminal_id",)))


@pytest.mark.parametrize(
    ("revoked", "told"),
    [
        (f"SELECT ON {TABLE}", 'may not read it: GRANT SELECT ON public.terminal_acquirer TO "{role}";'),
        (
            "USAGE ON SCHEMA compactory",
            "may not read the log of its deleted rows: GRANT USAGE ON SCHEMA compactory",
        ),
        ("SELECT ON compactory.deleted_rows", 'GRANT SELECT ON compactory.deleted_rows TO "{role}";'),
        ("USAGE ON SCHEMA public", 'may not use its schema: GRANT USAGE ON SCHEMA public TO "{role}";'),
        ("CONNECT ON DATABASE", 'permission denied for database "{database}"'),
    ],
)
def test_one_right_less_and_the_source_names_it(tenancy: Tenancy, revoked: str, told: str) -> None:
    tenancy.adopt()
    assert planned(tenancy) == []
    if revoked.endswith("DATABASE"):
        revoked += f' "{tenancy.database}"'
    tenancy.run(f'REVOKE {revoked} FROM "{tenancy.roles.source}"')
    [problem] = planned(tenancy)
    assert told.format(role=tenancy.roles.source, database=tenancy.database) in problem


def test_a_hardened_server_names_the_function(tenancy: Tenancy) -> None:
    tenancy.run("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    [problem] = planned(tenancy)
    assert "permission denied for function pg_control_system" in problem
    tenancy.run(f'GRANT EXECUTE ON FUNCTION pg_control_system() TO "{tenancy.roles.source}"')
    assert planned(tenancy) == []


def test_row_level_security_is_refused_unless_the_url_asks_for_it(tenancy: Tenancy) -> None:
    tenancy.run(f"ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY")
    [problem] = planned(tenancy)
    assert f'ALTER ROLE "{tenancy.roles.source}" BYPASSRLS' in problem
    config = connector(tenancy)
    server = Server.open({**config.connection.conninfo, "options": "-c row_security=on"})
    try:
        [plan] = plan_tables(server, config)
    finally:
        server.close()
    assert any("rows that a policy hides are left out" in warning for warning in plan.warnings)


def test_grants_may_be_printed_and_run_again(tenancy: Tenancy) -> None:
    tenancy.adopt()
    with tenancy.connect() as connection:
        script = ";\n".join(plan_grants(connection, [TABLE], tenancy.roles))
        connection.execute(script)
        connection.execute(script)
    assert planned(tenancy) == []


def test_serial_columns_and_quoted_names(tenancy: Tenancy) -> None:
    tenancy.run('CREATE SCHEMA "Odd one"; CREATE TABLE "Odd one"."user" (id serial PRIMARY KEY, name text)')
    tenancy.run(f'ALTER TABLE "Odd one"."user" OWNER TO "{tenancy.roles.owner}"')
    with tenancy.connect() as connection:
        statements = plan_grants(connection, ['"Odd one"."user"'], tenancy.roles)
        connection.execute(";\n".join(statements))
    tenancy.run("""INSERT INTO "Odd one"."user" (name) VALUES ('x')""", tenancy.roles.writer)


def test_a_superusers_table_is_refused(tenancy: Tenancy) -> None:
    tenancy.run("CREATE TABLE theirs (id int)")
    with tenancy.connect() as connection, pytest.raises(ConfigError, match="belongs to postgres, a superuser"):
        plan_grants(connection, ["theirs"], Roles())


def test_the_command_prints_or_grants(tenancy: Tenancy, tmp_path: Path) -> None:
    names = [f"--role={part}={getattr(tenancy.roles, part)}" for part in ("owner", "source", "writer")]
    words = ["sql", "roles", TABLE, *names, "--postgres", tenancy.url()]
    printed = run_command([*words, "--print"], folder=tmp_path, environment=os.environ).stdout
    assert f'GRANT SELECT ON {TABLE} TO "{tenancy.roles.source}";' in printed.splitlines()
    tenancy.run(f'REVOKE SELECT ON {TABLE} FROM "{tenancy.roles.source}"')
    assert planned(tenancy)
    run_command(words, folder=tmp_path, environment=os.environ).check_returncode()
    assert planned(tenancy) == []
    tenancy.run(f'REVOKE SELECT ON {TABLE} FROM "{tenancy.roles.source}"')
    tenancy.run(printed)
    assert planned(tenancy) == []
