"""``compactory sql`` on real Postgres."""

from __future__ import annotations

import os
import pty
import subprocess

import psycopg
import pytest

from tests.cli.conftest import COMPACTORY, NOBODY_HOME, Shell, in_process

ADOPT = ("sql", "adopt", "terminal_acquirer", "--key", "terminal_id", "--active", "is_active")


@pytest.fixture
def sql(compactory: Shell, terminals: str) -> Shell:
    """A folder whose compactory.toml names the database."""
    compactory.write("compactory.toml", f'[postgres]\nurl = "{terminals}"\n')
    return compactory


def test_install_applies_what_is_missing(sql: Shell) -> None:
    outcome = sql("sql", "install", "--json")
    assert outcome.code == 0
    assert outcome.json["applied"][0] == {"version": 1, "name": "source"}
    assert sql("sql", "install", "--json").json == {"applied": []}
    assert sql("sql", "install").out == "nothing to do: every migration has been applied\n"


def test_status_is_exit_code_1_while_something_is_pending(sql: Shell) -> None:
    outcome = sql("sql", "status")
    assert outcome.code == 1
    assert "pending" in outcome.out
    assert "apply them with: compactory sql install" in outcome.out
    assert "✓ applied migration 1: source" in sql("sql", "install").out
    outcome = sql("sql", "status")
    assert outcome.code == 0
    assert "no table is adopted" in outcome.out
    assert sql("sql", "status", "--json").json["healthy"] is True


def test_adopt_says_each_step_and_may_run_again(sql: Shell, terminals: str) -> None:
    outcome = sql(*ADOPT)
    assert outcome.code == 0
    assert outcome.out.count("  • ") > 3
    assert outcome.out.splitlines()[-1] == "✓ public.terminal_acquirer is adopted"
    assert sql(*ADOPT).out == "✓ public.terminal_acquirer was adopted already: nothing to do\n"
    outcome = sql(*ADOPT, "--json")
    assert outcome.json["steps"] == []
    assert outcome.json["adopted"] is True
    [table] = sql("sql", "status", "--json").json["tables"]
    adoption = table["adoption"]
    assert (adoption["key"], adoption["active"], table["notify"]) == (["terminal_id"], "is_active", True)
    assert "public.terminal_acquirer   terminal_id   is_active   yes       yes" in sql("sql", "status").out


REFUSED = (
    "an UPDATE that changes terminal_id or id (--key, --id)",
    "a second active row, where is_active is not false, with the same terminal_id",
    "a DELETE or TRUNCATE of active rows, where is_active is not false (--allow-deletes allows it)",
)


def test_what_adoption_refuses_to_the_application_is_said_before_it_changes_anything(sql: Shell) -> None:
    """The question is for a terminal; a script reads the same and goes on."""
    printed = sql(*ADOPT, "--print").out
    lines = sql(*ADOPT).out.splitlines()
    head = lines.index("From now on Postgres refuses on public.terminal_acquirer:")
    assert head < next(number for number, line in enumerate(lines) if line.startswith("  • "))
    for text in REFUSED:
        assert f"  ! {text}" in lines
        assert f"-- From now on refused: {text}" in printed
    assert sql(*ADOPT, "--json").json["refused"] == list(REFUSED)
    allowed = sql(*ADOPT, "--allow-deletes", "--json")
    assert allowed.json["refused"] == list(REFUSED[:2])
    assert sql("sql", "status", "--json").json["tables"][0]["adoption"]["allow_deletes"] is True


@pytest.mark.parametrize(("answer", "code"), [("n", 130), ("y", 0)])
def test_on_a_terminal_adoption_asks(sql: Shell, answer: str, code: int) -> None:
    assert on_a_terminal(sql, *ADOPT, answer=answer) == code
    assert (sql("sql", "status").code == 0) == (code == 0)
    assert on_a_terminal(sql, *ADOPT, "--yes", answer="") == 0
    assert on_a_terminal(sql, *ADOPT, answer="") == 0, "nothing is left to do, nothing to ask"


def on_a_terminal(shell: Shell, *arguments: str, answer: str) -> int:
    """Return the exit code of a command whose input is a terminal that was typed ``answer`` into."""
    main, terminal = pty.openpty()
    try:
        if answer:
            os.write(main, f"{answer}\n".encode())
        done = subprocess.run(
            [*COMPACTORY, *arguments],
            stdin=terminal, cwd=shell.folder, env=shell.environment, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(main)
        os.close(terminal)
    assert b"Traceback" not in done.stderr
    return done.returncode


def test_status_tells_what_is_wrong_with_a_table_and_the_remedy(sql: Shell, terminals: str) -> None:
    assert sql(*ADOPT).code == 0
    with psycopg.connect(terminals, autocommit=True) as connection:
        connection.execute("ALTER TABLE terminal_acquirer DISABLE TRIGGER ALL")
    outcome = sql("sql", "status")
    assert outcome.code == 1
    assert "repair it with: compactory sql adopt public.terminal_acquirer --key terminal_id" in outcome.out
    [table] = sql("sql", "status", "--json").json["tables"]
    assert table["adopted"] is False
    assert table["problems"]


def test_adopt_can_print_its_sql_and_change_nothing(sql: Shell, terminals: str) -> None:
    outcome = sql(*ADOPT, "--no-notify", "--print")
    assert outcome.code == 0
    assert "CREATE TRIGGER" in outcome.out
    assert "compactory_source" not in outcome.out.split("CREATE TRIGGER", 1)[1]
    assert "CREATE TRIGGER" in sql(*ADOPT, "--print", "--json").json["sql"]
    assert sql("sql", "status").code == 1
    with psycopg.connect(terminals, autocommit=True) as connection:
        connection.execute(outcome.out.encode()[: outcome.out.encode().index(b"-- Builds:")])
    [table] = sql("sql", "status", "--json").json["tables"]
    assert table["notify"] is False


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("terminal_acquirers", "--key", "terminal_id"), "there is no table terminal_acquirers; did you mean"),
        (("terminal_acquirer", "--key", "terminal"), "has no column 'terminal' (did you mean 'terminal_id'?)"),
        (("terminal_acquirer", "--key", " , "), "--key: name at least one column"),
    ],
)
def test_a_table_or_column_that_is_missing_is_exit_code_2(sql: Shell, arguments: tuple[str, ...], text: str) -> None:
    outcome = sql("sql", "adopt", *arguments)
    assert outcome.code == 2
    assert text in outcome.err


def test_several_problems_come_at_once(sql: Shell) -> None:
    outcome = sql("sql", "adopt", "terminal_acquirer", "--key", "a,b", "--active", "c", "--json")
    assert outcome.code == 2
    assert len(outcome.error["problems"]) == 3


def test_a_wrong_password_is_refused_and_never_printed(compactory: Shell, guarded: str) -> None:
    assert compactory("sql", "status", "--postgres", guarded).code == 1
    wrong = guarded.replace("s3cr3t", "wr0ng")
    outcome = compactory("sql", "status", "--postgres", wrong, "--log-level", "debug")
    assert outcome.code == 2
    assert "refused the login" in outcome.err
    assert "wr0ng" not in outcome.err


def test_a_role_that_does_not_exist_is_no_outage(compactory: Shell, terminals: str) -> None:
    outcome = compactory("sql", "status", "--postgres", terminals.replace("postgres@", "absent@"))
    assert outcome.code == 2
    assert "refused the login: connection failed" in outcome.err
    assert 'role "absent" does not exist' in outcome.err


def test_a_role_without_rights_is_told_so(compactory: Shell, guarded: str) -> None:
    outcome = compactory("sql", "install", COMPACTORY_POSTGRES=guarded)
    assert outcome.code == 2
    assert "permission denied" in outcome.err


def test_roles_of_each_part_are_printed_or_made(sql: Shell, terminals: str) -> None:
    assert sql("sql", "install").code == 0
    role = f"sink_{terminals.rsplit('/', 1)[1].replace('-', '_')}"
    words = ("sql", "roles", "terminal_acquirer", "--for", "sink", "--role", f"sink={role}")
    assert f"TO {role};" in sql(*words, "--print").out
    with psycopg.connect(terminals, autocommit=True) as connection:
        stored = "SELECT count(*) FROM pg_roles WHERE rolname = %s"
        assert connection.execute(stored, [role]).fetchone() == (0,)
        assert sql(*words).out == f"✓ {role} has its rights\n"
        privilege = "SELECT has_table_privilege(%s, 'terminal_acquirer', 'INSERT')"
        assert connection.execute(privilege, [role]).fetchone() == (True,)
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    for part, name in (("outbox", "compactory_relay"), ("jobs", "compactory_executor")):
        statements = sql("sql", "roles", "--for", part, "--print", "--json").json["sql"]
        assert any(name in statement for statement in statements)
    for wrong, text in (
        ((), "name the tables"),
        (("t", "--for", "jobs"), "roles for jobs are for no tables"),
        (("t", "--role", "reader=x"), "the kinds of source are owner, source, writer"),
    ):
        refused = sql("sql", "roles", *wrong)
        assert (refused.code, text in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("url", "code", "text"),
    [
        (None, 2, "which database? give --postgres"),
        ("postgresql://u:s3cr3t@[h/db", 2, "error: COMPACTORY_POSTGRES: not a valid Postgres URL"),
        (f"postgresql://u:s3cr3t@{NOBODY_HOME}/db", 3, "was not reached"),
    ],
)
def test_a_database_that_is_not_named_or_not_there(url: str | None, code: int, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if url is not None:
            patch.setenv("COMPACTORY_POSTGRES", url)
        outcome = in_process("sql", "status")
    assert outcome.code == code
    assert text in outcome.err
    assert "s3cr3t" not in outcome.err


def test_prune_says_why_it_keeps_what_it_keeps(sql: Shell, terminals: str, kafka: str) -> None:
    assert sql("sql", "install").code == 0
    prune = ("sql", "prune", "--kafka", kafka, "--older-than", "0")
    assert sql(*prune).out == "nothing to do: no deletion is logged\n"
    with psycopg.connect(terminals) as connection:
        logged = "INSERT INTO compactory.deleted_rows (\"table\", \"row\") VALUES ('terminal_acquirer', '{}')"
        connection.execute(logged)
    kept = "no connector of this Kafka cluster polls it"
    assert sql(*prune).out == f"public.terminal_acquirer: kept: {kept}\n"
    [found] = sql(*prune, "--dry-run", "--json").json["tables"]
    assert found == {"table": "public.terminal_acquirer", "removed": 0, "problem": kept}
