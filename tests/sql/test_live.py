"""Adoption of a table in use: writers, locks, kills."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import psycopg
import pytest

import compactory_sql
from compactory.errors import ConfigError, Unreachable
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.schema import Adoption, Patience, adopt, inspect, plan
from tests.conftest import installed_template

from .conftest import REGIONS, REGIONS_TABLE, TERMINALS, column, dump, one

HASTE = Patience(lock_timeout=0.1, tries=2, pause=0.05)
Connect = Callable[..., psycopg.Connection]


class Writers:
    """Writes at random in several threads; remembers of every row what was committed last, and by which transaction."""

    def __init__(self, connect: Connect, seeded: random.Random, number: int) -> None:
        self.committed: dict[str, tuple[str, int]] = {}
        self.failures: list[BaseException] = []
        self.count = 0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(connect(autocommit=False), random.Random(seeded.random()), n))
            for n in range(number)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, connection: psycopg.Connection, dice: random.Random, number: int) -> None:
        try:
            while not self._stop.is_set():
                self._transaction(connection, dice, number)
        except BaseException as error:  # noqa: BLE001  # shown by the test
            self.failures.append(error)

    def _transaction(self, connection: psycopg.Connection, dice: random.Random, number: int) -> None:
        written: dict[str, str] = {}
        xid = one(connection, "SELECT pg_current_xact_id()::text::bigint")
        for _ in range(dice.randint(1, 4)):
            key, value = f"W{number}-{dice.randint(1, 50)}", str(dice.random())
            with connection.transaction(force_rollback=dice.random() < 0.3) as savepoint:
                connection.execute(
                    """INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES (%s, %s)
                       ON CONFLICT (terminal_id) WHERE is_active IS TRUE
                       DO UPDATE SET acquirer_id = EXCLUDED.acquirer_id""",
                    [key, value],
                )
            if not savepoint.force_rollback:
                written[key] = value
        connection.commit()
        self.committed |= {key: (value, xid) for key, value in written.items()}
        self.count += 1


def test_writers_lose_nothing_while_their_table_is_adopted(
    terminals: psycopg.Connection, connect: Connect, seeded: random.Random
):
    with Writers(connect, seeded, 6) as writers:
        _until(lambda: writers.count > 100)
        adopt(terminals, TERMINALS)
        after = writers.count
        _until(lambda: writers.count > after + 100)
    assert writers.failures == []
    rows = terminals.execute(
        "SELECT terminal_id, acquirer_id, updated_xid::text::bigint FROM terminal_acquirer"
    ).fetchall()
    found = {key: (value, xid) for key, value, xid in rows}
    adopting = found["T1"][1]  # never written since
    for key, (value, xid) in writers.committed.items():
        assert found[key][0] == value
        assert found[key][1] in {xid, adopting}
    assert inspect(terminals, "terminal_acquirer").problems == ()


def test_a_long_transaction_is_named_and_nothing_is_changed(
    database: str, terminals: psycopg.Connection, connect: Connect
):
    holder, told = connect(autocommit=False, application_name="report"), []
    holder.execute("SELECT FROM terminal_acquirer")
    with pytest.raises(Unreachable, match=f"pid {holder.info.backend_pid} .*'report', idle in transaction"):
        adopt(terminals, TERMINALS, told.append, patience=HASTE)
    assert any(line.startswith("waiting for a lock held by pid") for line in told)
    assert one(terminals, "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'zz%'") == 0
    assert "updated_xid" not in dump(database, "--table=terminal_acquirer")
    terminals.execute("UPDATE terminal_acquirer SET acquirer_id = 'B'")  # nobody waits behind us any more
    holder.rollback()
    assert adopt(terminals, TERMINALS, patience=HASTE)


def test_a_prepared_transaction_is_named(terminals: psycopg.Connection, connect: Connect, database: str):
    gid = database.rsplit("/", 1)[1]
    connect().execute(f"BEGIN; UPDATE terminal_acquirer SET acquirer_id = 'B'; PREPARE TRANSACTION '{gid}'")
    try:
        with pytest.raises(Unreachable, match=f"prepared transaction '{gid}'"):
            adopt(terminals, TERMINALS, patience=HASTE)
    finally:
        terminals.execute(f"ROLLBACK PREPARED '{gid}'")


def test_the_lock_is_asked_for_again_after_a_pause(terminals: psycopg.Connection, connect: Connect):
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM terminal_acquirer")

    def release(line: str) -> None:
        if line.startswith("waiting for a lock"):
            holder.rollback()

    assert adopt(terminals, TERMINALS, release, patience=HASTE)


class Cut(Exception):
    """Ends an adoption where it is raised."""


@pytest.mark.parametrize("adoption", [TERMINALS, REGIONS], ids=["plain", "partitioned"])
def test_a_run_that_was_cut_off_anywhere_is_finished_by_the_next(
    server: PostgresServer, new_database: Callable[..., str], adoption: Adoption
):
    def prepared(template: str = "template1") -> str:
        url = new_database(template)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(compactory_sql.read("templates/terminal_acquirer.sql"))
            connection.execute("DROP INDEX terminal_acquirer_unique_idx")
            connection.execute(REGIONS_TABLE)
        return url

    whole = prepared()
    with psycopg.connect(whole, autocommit=True) as connection:
        steps = len(adopt(connection, adoption))
    wanted = dump(whole)
    for number in range(0, steps, 3):
        url, told = prepared(*[installed_template(server)] if number else []), []

        def cut(line: str, told: list[str] = told, number: int = number) -> None:
            told.append(line)
            if len(told) > number:
                raise Cut

        with psycopg.connect(url, autocommit=True) as connection, pytest.raises(Cut):
            adopt(connection, adoption, cut)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"UPDATE {adoption.table} SET is_active = is_active")  # usable all the same
            adopt(connection, adoption)
            assert inspect(connection, adoption.table).problems == ()
        assert dump(url) == wanted


def test_an_index_whose_build_was_killed_is_built_anew(terminals: psycopg.Connection, connect: Connect):
    holder, adopter = connect(autocommit=False), connect()
    errors: list[BaseException] = []

    def hold(line: str) -> None:
        if line.startswith("build index terminal_acquirer_compactory_xid"):
            holder.execute("UPDATE terminal_acquirer SET acquirer_id = 'B'")  # CONCURRENTLY waits for it

    def run() -> None:
        try:
            adopt(adopter, TERMINALS, hold)
        except psycopg.Error as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    invalid = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
    _until(lambda: column(terminals, invalid))
    terminals.execute("SELECT pg_terminate_backend(%s)", [adopter.info.backend_pid])
    thread.join()
    holder.rollback()
    assert isinstance(errors[0], psycopg.errors.AdminShutdown)
    assert column(terminals, invalid) == ["terminal_acquirer_compactory_xid"]
    assert "no valid index for finding changed rows" in inspect(terminals, "terminal_acquirer").problems[0]
    assert inspect(terminals, "terminal_acquirer").adopted
    titles = [step.title for step in adopt(terminals, TERMINALS)]
    assert titles[0] == "rebuild index terminal_acquirer_compactory_xid on public.terminal_acquirer"
    assert column(terminals, invalid) == []


def test_a_duplicate_that_comes_while_the_index_is_built_leaves_no_index(terminals: psycopg.Connection):
    terminals.execute("DROP INDEX terminal_acquirer_unique_idx")

    def interfere(line: str) -> None:
        if line.startswith("build index terminal_acquirer_compactory_key"):
            terminals.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'B')")

    with pytest.raises(ConfigError, match=r"Key \(terminal_id\)=\(T1\) is duplicated"):
        adopt(terminals, TERMINALS, interfere)
    assert column(terminals, "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid") == []
    terminals.execute("UPDATE terminal_acquirer SET is_active = false WHERE acquirer_id = 'B'")
    assert len(adopt(terminals, TERMINALS)) == 1


@pytest.mark.usefixtures("bare")
def test_two_adopters_at_once(terminals: psycopg.Connection, connect: Connect):
    other = connect()
    held = {
        "lock_class": compactory_sql.ADOPT_LOCK_CLASS,
        "oid": one(terminals, "SELECT 'terminal_acquirer'::regclass::oid::int"),
    }
    other.execute(compactory_sql.query("adoption/lock"), held)
    with pytest.raises(Unreachable, match=f"pid {other.info.backend_pid} is adopting this table"):
        adopt(terminals, TERMINALS, patience=HASTE)
    other.execute(compactory_sql.query("adoption/unlock"), held)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(len(adopt(connect(), TERMINALS)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert min(results) == 0 < max(results)


def test_a_time_limit_of_the_role_does_not_cut_the_build(terminals: psycopg.Connection):
    terminals.execute("SET statement_timeout = '4s'; SET lock_timeout = '3s'")
    assert adopt(terminals, TERMINALS)
    assert one(terminals, "SHOW statement_timeout") == "4s"
    assert one(terminals, "SHOW lock_timeout") == "3s"


def test_a_plan_leaves_no_lock_behind(terminals: psycopg.Connection):
    plan(terminals, TERMINALS)
    adopt(terminals, TERMINALS)
    assert one(terminals, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def _until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
