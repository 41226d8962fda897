"""``compactory source`` with the article's connector, on real Postgres and Apache Kafka."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import psycopg
import pytest

from compactory import GlobalStore
from compactory.kafka.client import Kafka
from compactory_cli.commands import source, source_offsets
from tests.cli.conftest import NOBODY_HOME, Article, Shell, in_process


def altered(shell: Shell, article: Article, **changes: object) -> None:
    """Change keys of the connector; None removes one."""
    document = json.loads(article.path.read_text()) | {name.replace("__", "."): item for name, item in changes.items()}
    article.path.write_text(json.dumps({name: item for name, item in document.items() if item is not None}))


def test_validate_shows_topic_key_fields_and_sql(compactory: Shell, article: Article) -> None:
    outcome = compactory("source", "validate", *article.arguments, "--json")
    assert outcome.code == 0
    [connector] = outcome.json["connectors"]
    [table] = connector["tables"]
    assert connector["connector"] == article.path.stem
    assert table["table"] == "public.terminal_acquirer"
    assert table["topic"] == article.topic
    assert table["key_columns"] == ["id"]
    assert table["columns"] == ["id", "terminal_id", "acquirer_id", "is_active", "updated_date"]
    assert table["fields"] == ["id", "terminalId", "acquirerId", "isActive", "updatedDate"]
    assert (table["rows"], table["adopted"]) == (5, False)
    assert table["sql"].startswith("SELECT")
    assert (connector["mode"], table["cursor"]) == ("timestamp+incrementing", ["updated_date", "id"])
    assert (table["kind"], table["misses_late_commits"]) == ("table", False)
    assert table["schema"][0] == {"name": "id", "type": "bigint", "nullable": False, "used": True, "in_key": True}
    assert any("no index on updated_date" in warning for warning in table["warnings"])

    lines = compactory("source", "validate", *article.arguments).out.splitlines()
    assert lines[0].startswith(f"{article.path.stem}: reads 127.0.0.1:")
    assert f"  public.terminal_acquirer → topic {article.topic}" in lines
    facts = dict(line.split(maxsplit=1) for line in lines if line.startswith("    ") and len(line.split()) > 1)
    assert facts["key"] == "id"
    assert facts["late"] == "commits are found (guarantee 8)"
    assert facts["fields"] == "id, terminalId, acquirerId, isActive, updatedDate"
    assert facts["adopted"].startswith("no; run compactory sql adopt public.terminal_acquirer --key")


def test_a_dry_run_shows_the_first_records_and_writes_nothing(compactory: Shell, article: Article, kafka: str) -> None:
    outcome = compactory("source", "run", "--dry-run", *article.arguments, "--kafka", kafka, "--json")
    [table] = outcome.json["connectors"][0]["tables"]
    assert [record["key"] for record in table["records"]] == ["1", "2", "3", "4", "5"]
    assert table["records"][0]["value"]["terminalId"] == "T1"
    outcome = compactory("source", "run", "--dry-run", *article.arguments)
    assert '{"id":1,"terminalId":"T1","acquirerId":"A1","isActive":true,"updatedDate":"' in outcome.out
    assert "5 of 5 records; nothing was written" in outcome.out
    assert article.topic not in Kafka(kafka).topic_names()


def test_once_publishes_what_is_committed_and_ends(compactory: Shell, article: Article, kafka: str) -> None:
    outcome = compactory("source", "run", "--once", *article.arguments, "--kafka", kafka, "--json")
    assert outcome.code == 0
    assert "a first load sorts all rows" in outcome.err
    logged = [json.loads(line) for line in outcome.err.splitlines()]
    assert [line["records"] for line in logged if line["event"] == "loaded"] == [5]
    [connector] = outcome.json["connectors"]
    assert connector["tables"][0] | {"polls": 0} == {
        "table": "public.terminal_acquirer",
        "topic": article.topic,
        "rows": 5,
        "polls": 0,
        "errors": 0,
        "adopted": False,
    }
    with GlobalStore(kafka, [article.topic]) as store:
        assert store[article.topic]["5"]["acquirerId"] == "A5"
    outcome = compactory("source", "run", "--once", *article.arguments, "--kafka", kafka)
    assert outcome.code == 0
    assert "a first load" not in outcome.err
    assert outcome.out == f"{article.path.stem} done: public.terminal_acquirer → {article.topic}: 0 records\n"


def test_sigterm_stops_it_cleanly(compactory: Shell, article: Article, kafka: str, terminals: str) -> None:
    running = compactory.start("source", "run", *article.arguments, "--kafka", kafka)
    try:
        await_topic(kafka, article.topic)
        with GlobalStore(kafka, [article.topic]) as store, psycopg.connect(terminals, autocommit=True) as database:
            view = store[article.topic]
            wait(lambda: len(view) == 5)
            database.execute("UPDATE terminal_acquirer SET acquirer_id = 'new' WHERE id = 3")
            wait(lambda: view["3"]["acquirerId"] == "new")
        running.terminate()
        out, err = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == 0, err
    assert out == f"{article.path.stem} stopped: public.terminal_acquirer → {article.topic}: 6 records\n"


def test_while_another_source_publishes_once_ends_with_exit_code_4(
    compactory: Shell, article: Article, kafka: str, terminals: str
) -> None:
    """Guarantee 11: it names the holder, who goes on undisturbed; without --once it stands by."""
    running = compactory.start("source", "run", *article.arguments, "--kafka", kafka, "--json")
    try:
        await_topic(kafka, article.topic)
        with GlobalStore(kafka, [article.topic]) as store, psycopg.connect(terminals, autocommit=True) as database:
            wait(lambda: len(store[article.topic]) == 5)
            outcome = compactory("source", "run", "--once", *article.arguments, "--kafka", kafka, "--json")
            database.execute("UPDATE terminal_acquirer SET acquirer_id = 'new' WHERE id = 3")
            wait(lambda: store[article.topic]["3"]["acquirerId"] == "new")
        running.terminate()
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 0, err
    assert outcome.code == 4
    assert outcome.error["error"] == "LeaseLost"
    assert f"pid {running.pid} on host " in outcome.error["message"]


def test_two_connectors_run_side_by_side(
    compactory: Shell, terminals: str, kafka: str, unique: Callable[[str], str]
) -> None:
    first, second = Article(compactory, terminals, unique("p")), Article(compactory, terminals, unique("p"))
    second.path.write_text(second.path.read_text().replace("${tpp:", "${other:"))
    providers = (*first.arguments[1:], "--provider", second.arguments[2].replace("tpp=", "other="))
    outcome = compactory("source", "run", "--once", first.path, second.path, *providers, "--kafka", kafka, "--json")
    assert [connector["tables"][0]["rows"] for connector in outcome.json["connectors"]] == [5, 5]


def test_every_problem_of_every_connector_comes_at_once(compactory: Shell, article: Article) -> None:
    altered(compactory, article, pol__interval__ms="5", mode="bulky", transforms__copyId__type="org.example.Mine")
    other = compactory.write("other.json", "{")
    outcome = compactory("source", "run", *article.arguments, other, compactory.folder / "gone.json", "--json")
    assert outcome.code == 2
    problems = "\n".join(outcome.error["problems"])
    assert f"{article.path}: pol.interval.ms: unknown key; did you mean poll.interval.ms?" in problems
    assert f"{article.path}: mode: must be one of bulk, incrementing" in problems
    assert "org.example.Mine" in problems
    assert f"{other}: line 1" in problems
    assert "gone.json: can't be read: No such file" in problems
    assert "which Kafka? give --kafka" in problems


def test_an_unresolved_placeholder_names_the_ways_to_give_it(compactory: Shell, article: Article) -> None:
    outcome = compactory("source", "validate", article.path)
    assert outcome.code == 2
    assert "error: 4 problems" in outcome.err
    assert "connection.url: nothing resolves ${tpp:reference-data.db.url}; give --provider tpp=FILE" in outcome.err
    assert "TPP_REFERENCE_DATA_DB_URL" in outcome.err


def test_a_provider_must_be_a_name_and_a_file(compactory: Shell, article: Article) -> None:
    outcome = compactory("source", "validate", article.path, "--provider", "tpp")
    assert outcome.code == 2
    assert "--provider tpp: must be NAME=FILE" in outcome.err


def test_the_same_connector_twice_is_refused(compactory: Shell, article: Article) -> None:
    outcome = compactory("source", "validate", *article.arguments, article.path)
    assert outcome.code == 2
    assert f"two connectors are named '{article.path.stem}'" in outcome.err


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"table__whitelist": "terminal_acquirers"}, "terminal_acquirers"),
        ({"timestamp__column__name": "updated"}, "updated"),
        ({"incrementing__column__name": "idx"}, "idx"),
    ],
)
def test_a_missing_table_or_column_is_found_before_anything_is_written(
    compactory: Shell, article: Article, kafka: str, changes: dict[str, str], text: str
) -> None:
    altered(compactory, article, **changes)
    outcome = compactory("source", "run", *article.arguments, "--kafka", kafka)
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1].startswith("error: ")
    assert text in outcome.err
    assert article.topic not in Kafka(kafka).topic_names()


@pytest.mark.parametrize(
    "words",
    [["verify"]]
    + [["source", str(each.name)] for each in source.app.registered_commands]
    + [["source", "offsets", str(each.name)] for each in source_offsets.app.registered_commands],
    ids=" ".join,
)
def test_a_database_given_beside_the_connectors_is_not_taken_in_silence(words: list[str]) -> None:
    required = {"set": ["--to-time", "2024-01-31"], "import": ["--from-connect", "t"]}.get(words[-1], [])
    command = [*words, *required, "absent.json", "--kafka", "127.0.0.1:1"]
    outcome = in_process(*command, "--postgres", "postgresql://user@localhost/other")
    assert outcome.code == 2
    assert outcome.err.count("--postgres is not used: a source connects to connection.url of its connector") == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPACTORY_POSTGRES", "postgresql://h/d")
        assert "--postgres" not in in_process(*command).err


def test_a_topic_may_be_required_to_exist(compactory: Shell, article: Article, kafka: str) -> None:
    outcome = compactory("source", "run", *article.arguments, "--no-create-topics", "--kafka", kafka, "--json")
    assert outcome.code == 2
    assert f"topic '{article.topic}' does not exist" in outcome.error["message"]


def test_a_wrong_password_is_refused_and_never_printed(compactory: Shell, article: Article, guarded: str) -> None:
    user = guarded.split("//")[1].split(":", maxsplit=1)[0]
    altered(compactory, article, connection__user=user, connection__password="wr0ng-s3cr3t")
    for command in (("validate",), ("run", "--kafka", NOBODY_HOME, "--log-level", "debug")):
        outcome = compactory("source", command[0], *article.arguments, *command[1:])
        assert outcome.code == 2
        assert "refused the login" in outcome.err
        assert "wr0ng" not in outcome.err + outcome.out


def test_a_wrong_url_is_told_without_the_url(compactory: Shell, article: Article) -> None:
    altered(compactory, article, connection__url="jdbc:mysql://me:s3cr3t@h/db")
    outcome = compactory("source", "validate", *article.arguments)
    assert outcome.code == 2
    assert "connection.url: jdbc:mysql is not a Postgres URL" in outcome.err
    assert "s3cr3t" not in outcome.err


def test_a_database_that_is_not_there_is_exit_code_3(compactory: Shell, article: Article) -> None:
    altered(compactory, article, connection__url=f"jdbc:postgresql://{NOBODY_HOME}/db")
    outcome = compactory("source", "validate", *article.arguments, "--json")
    assert outcome.code == 3
    assert outcome.error["system"] == "Postgres"


@pytest.mark.parametrize(("once", "code"), [((), 0), (("--once",), 130)])
def test_ctrl_c_stops_it_while_it_waits_for_postgres(
    compactory: Shell, article: Article, once: tuple[str, ...], code: int
) -> None:
    """What was to be published once is not, and no scheduler may take it for done."""
    altered(compactory, article, connection__url=f"jdbc:postgresql://{NOBODY_HOME}/db")
    words = (*once, *article.arguments, "--kafka", NOBODY_HOME, "--log-level", "info")
    running = compactory.start("source", "run", *words)
    try:
        assert running.stderr is not None
        while "source waits" not in (line := running.stderr.readline()):
            assert line, "it ended by itself"
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == code
    assert " stopped: nothing was sent" in out


def await_topic(kafka: str, topic: str) -> None:
    client = Kafka(kafka)
    wait(lambda: topic in client.topics([topic]))


def wait(reached: Callable[[], bool], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)
