"""``compactory source offsets`` with the article's connector, on real Postgres and Apache Kafka."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import psycopg
import pytest
from confluent_kafka import Producer

from compactory.kafka.client import Kafka
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.source.offsets.offset import offset_key
from compactory_connectors.source.offsets.topics import OFFSETS_TOPIC, ensure_topics, stored_values
from tests.cli.conftest import COMPACTORY, NOBODY_HOME, Article, Outcome, Shell, in_process
from tests.cli.test_source import altered, await_topic, wait


class Offsets:
    """The commands on one connector, and its topics."""

    def __init__(self, shell: Shell, article: Article, kafka: str, url: str) -> None:
        self.shell, self.article, self.kafka = shell, article, kafka
        self.url, self.database = url, url.rsplit("/", 1)[1]
        self.table = f"{self.database}.public.terminal_acquirer"
        self.key = offset_key(article.path.stem, self.database, "public", "terminal_acquirer")
        self.sql = psycopg.connect(url, autocommit=True)

    def __call__(self, command: str, *arguments: str, kafka: str | None = None) -> Outcome:
        words = ("source", "offsets", command, *self.article.arguments, *arguments)
        return in_process(*words, "--kafka", kafka or self.kafka)

    def run(self) -> int:
        """Run the source once; how many records it sent."""
        outcome = in_process("source", "run", "--once", *self.article.arguments, "--kafka", self.kafka, "--json")
        assert outcome.code == 0, outcome.err
        return int(outcome.json["connectors"][0]["tables"][0]["rows"])

    def keys(self) -> list[str]:
        return [(message.key() or b"").decode() for message in read(Kafka(self.kafka), self.article.topic)]

    def stored(self) -> dict[str, object] | None:
        ensure_topics(Kafka(self.kafka), {}, create=True)  # the run's first test may be this one
        value = stored_values(Kafka(self.kafka)).get(self.key)
        return json.loads(value) if value is not None else None

    def spread(self) -> None:
        """Rows a minute apart, so that times tell them apart."""
        self.sql.execute("ALTER TABLE terminal_acquirer DISABLE TRIGGER USER")
        self.sql.execute(
            "UPDATE terminal_acquirer SET updated_date = '2024-01-01'::timestamp + id * interval '1 minute'"
        )
        self.sql.execute("ALTER TABLE terminal_acquirer ENABLE TRIGGER USER")


@pytest.fixture
def offsets(compactory: Shell, article: Article, kafka: str, terminals: str) -> Iterator[Offsets]:
    made = Offsets(compactory, article, kafka, terminals)
    made.spread()
    yield made
    made.sql.close()


def test_show_needs_nothing_but_kafka(offsets: Offsets) -> None:
    assert "no offsets; its next run sends every row" in offsets("show").out
    offsets.run()
    altered(offsets.shell, offsets.article, connection__url=f"jdbc:postgresql://{NOBODY_HOME}/{offsets.database}")
    outcome = offsets("show", "--json")
    [table] = outcome.json["tables"]
    offset = table["offset"]
    assert (table["table"], offset["time"], offset["incrementing"]) == (offsets.table, "2024-01-01 00:05:00 UTC", 5)
    assert (offset["timestamp"], offset["timestamp_nanos"]) == (1704067500000, 0)
    assert offset["snapshot"]
    assert offset["system_identifier"]
    assert offset["timeline"] == 1
    assert table["written_at"] > 1_700_000_000
    line = offsets("show").out.splitlines()[-1]
    assert line.startswith(f"{offsets.table}   2024-01-01 00:05:00 UTC, id 5, snapshot ")
    assert " ago " in line


def test_show_counts_what_a_poll_would_send(offsets: Offsets) -> None:
    assert offsets("show", "--count", "--json").json["tables"][0]["rows"] == 5
    offsets.run()
    assert offsets("show", "--count", "--json").json["tables"][0]["rows"] == 0
    offsets.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id < 3")
    [table] = offsets("show", "--count", "--table", "terminal_acquirer", "--json").json["tables"]
    assert (table["table"], table["rows"]) == (offsets.table, 2)


def test_a_table_that_has_no_offset_yet_is_shown_too(offsets: Offsets) -> None:
    offsets.run()
    offsets.sql.execute("CREATE TABLE other (LIKE terminal_acquirer INCLUDING ALL)")
    altered(offsets.shell, offsets.article, name=offsets.article.path.stem, table__whitelist="terminal_acquirer,other")
    stored, other = offsets("show", "--json").json["tables"]
    assert (stored["table"], other["table"], other["written_at"]) == (offsets.table, "other", None)
    assert "other   none: the next run sends every row" in offsets("show", "--table", "other").out
    assert "did you mean other?" in offsets("show", "--table", "othr").err
    [stored, other] = offsets("set", "--to-time", "2024-01-01T00:04", "--dry-run", "--json").json["tables"]
    assert (stored["due"], stored["rows"]) == (0, 2)
    assert (other["before"], other["due"], other["rows"]) == (None, 0, 0)


def test_reset_forgets_and_says_who_did_it(offsets: Offsets) -> None:
    outcome = offsets("reset", "--json")
    assert (outcome.code, outcome.json["tables"]) == (0, [])
    offsets.run()
    before = offsets.stored()
    outcome = offsets("reset", "--dry-run", "--json")
    [table] = outcome.json["tables"]
    assert (outcome.json["written"], table["rows"], table["due"], table["after"]) == (False, 5, 0, None)
    assert offsets.stored() == before
    assert offsets("reset", "--yes").code == 0
    assert offsets.stored() is None
    shown = offsets("show").out
    assert "none: the next run sends every row" in shown
    assert "reset, by " in shown
    assert offsets.run() == 5
    assert len(offsets.keys()) == 10


PLACES = (
    (["--timestamp", "2024-01-01 00:02:00", "--incrementing", "2"], ["3", "4", "5"]),
    (["--timestamp", "1704067380000", "--incrementing", "0"], ["3", "4", "5"]),
    (["--timestamp", "2024-01-01T02:03:00+02:00"], ["3", "4", "5"]),
    (["--to-time", "2024-01-01T00:05"], ["5"]),
    (["--to-time", "2024-01-01T00:04"], ["4", "5"]),
)


def test_set_sends_again_what_is_beyond_the_place(offsets: Offsets) -> None:
    offsets.run()
    offsets.sql.execute("INSERT INTO terminal_acquirer (id, terminal_id, acquirer_id, updated_date)"
                        " VALUES (0, 'late', 'A', '2000-01-01')")  # fmt: skip
    before = offsets.stored()
    for arguments, again in PLACES:
        [table] = offsets("set", *arguments, "--dry-run", "--json").json["tables"]
        assert (table["due"], table["rows"]) == (1, len(again) + 1), arguments
    assert offsets.stored() == before
    outcome = offsets("set", *arguments)
    assert outcome.code == 0, outcome.err
    assert "3 rows; without this edit 1" in outcome.out
    stored = offsets.stored()
    assert stored is not None
    assert "set --to-time 2024-01-01T00:04" in str(stored["edited"])
    assert offsets.run() == 3  # what was never sent is sent in any case
    assert offsets.keys()[5:] == ["0", "4", "5"]
    assert offsets.run() == 0
    assert "set --to-time 2024-01-01T00:04" in offsets("show").out  # polls carry it along


def test_set_before_the_first_run_begins_there(offsets: Offsets) -> None:
    """A transaction that is open meanwhile is not given up, however old its rows' times are."""
    with psycopg.connect(offsets.url) as late:
        late.execute("INSERT INTO terminal_acquirer (id, terminal_id, acquirer_id, updated_date)"
                     " VALUES (0, 'late', 'A', '2000-01-01')")  # fmt: skip
        outcome = offsets("set", "--to-time", "2024-01-01T00:04")
    assert "rows up to there are never sent, unless they change" in outcome.out
    assert offsets.run() == 3
    offsets.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
    assert offsets.run() == 1
    assert offsets.keys() == ["0", "4", "5", "1"]


SENSELESS = (
    ([], "say where to"),
    (["--timestamp", "0", "--to-time", "2024-01-01"], "say where to"),
    (["--timestamp", "yesterday"], "--timestamp yesterday: not a time"),
    (["--to-time", "99999999999999999"], "not a time"),
    (["--incrementing", "3"], "give --timestamp too"),
    (["--timestamp", "0", "--table", "terminal_aquirer"], "did you mean terminal_acquirer?"),
)


def test_a_place_that_makes_no_sense_is_refused(offsets: Offsets) -> None:
    for arguments, text in SENSELESS:
        outcome = offsets("set", *arguments)
        assert outcome.code == 2
        assert text in outcome.err


def test_a_running_source_is_neither_disturbed_nor_able_to_write_over_an_edit(offsets: Offsets) -> None:
    """Guarantee 11: without --force nothing happens; with it the running source goes on from the edited offset."""
    running = offsets.shell.start("source", "run", *offsets.article.arguments, "--kafka", offsets.kafka, "--json")
    try:
        await_topic(offsets.kafka, offsets.article.topic)
        wait(lambda: len(offsets.keys()) == 5)
        for edit in (["reset"], ["set", "--to-time", "2024-01-01T00:04"]):
            outcome = offsets(*edit)
            assert outcome.code == 4
            assert "is running: pid " in outcome.err
        assert len(offsets.keys()) == 5
        offsets.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
        wait(lambda: len(offsets.keys()) == 6)  # it goes on undisturbed
        assert offsets("set", "--timestamp", "2024-01-01T00:03", "--force").code == 0
        offsets.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 2")
        wait(lambda: len(offsets.keys()) == 11)  # 1, 3, 4 and 5 again; 2 for the first time
        running.terminate()
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 0, err
    assert offsets.run() == 0
    assert offsets("reset").code == 0


def test_a_running_source_that_can_not_be_fenced_is_never_edited(offsets: Offsets) -> None:
    altered(offsets.shell, offsets.article, compactory__transactions="off")
    running = offsets.shell.start("source", "run", *offsets.article.arguments, "--kafka", offsets.kafka)
    try:
        await_topic(offsets.kafka, offsets.article.topic)
        wait(lambda: len(offsets.keys()) == 5)
        outcome = offsets("reset", "--force")
        assert outcome.code == 4
        assert "it can't be fenced" in outcome.err
        running.terminate()
        running.communicate(timeout=30)
    finally:
        running.kill()
        running.communicate()
    assert offsets("reset").code == 0
    assert offsets.stored() is None


def test_postgres_away(offsets: Offsets) -> None:
    """Whether a source runs is not known then, so nothing is edited, whatever --force says."""
    offsets.run()
    url = f"jdbc:postgresql://{NOBODY_HOME}/{offsets.database}"
    altered(offsets.shell, offsets.article, connection__url=url)
    assert offsets("reset").code == 3
    assert offsets("set", "--to-time", "2024-01-01T00:01").code == 3
    assert offsets("reset", "--force").code == 3
    assert offsets.stored() is not None


@pytest.mark.proof
def test_kafka_away(offsets: Offsets) -> None:
    edits = (["show"], ["reset"], ["set", "--to-time", "2024-01-01T00:01"], ["import", "--from-connect", "t"])
    common = (*offsets.article.arguments, "--json", "--kafka", NOBODY_HOME)
    running = [offsets.shell.start("source", "offsets", *words, *common) for words in edits]
    for process in running:
        _, err = process.communicate(timeout=60)
        assert (process.returncode, json.loads(err.splitlines()[-1])["system"]) == (3, "Kafka")


def test_a_record_of_something_else_in_the_offsets_topic(offsets: Offsets) -> None:
    offsets.run()
    producer = Producer({"bootstrap.servers": offsets.kafka})
    producer.produce(OFFSETS_TOPIC, b"\xff", b"\xff no offset")
    producer.produce(OFFSETS_TOPIC, b'{"snapshot":5}', offsets.key)
    assert producer.flush(30) == 0
    outcome = offsets("show")
    assert outcome.code == 0
    assert "can't be read" in outcome.out
    outcome = offsets("set", "--to-time", "2024-01-01T00:01")
    assert outcome.code == 2
    assert "reset it first" in outcome.err
    assert offsets("reset").code == 0
    assert offsets.run() == 5
    producer.produce(OFFSETS_TOPIC, None, b"\xff no offset")
    assert producer.flush(30) == 0


def test_many_connectors_in_one_topic(offsets: Offsets) -> None:
    """Only one's own are shown; a name that nobody has suggests the nearest."""
    ensure_topics(Kafka(offsets.kafka), {}, create=True)
    producer = Producer({"bootstrap.servers": offsets.kafka})
    names = [f"{offsets.article.path.stem}{number}" for number in range(2000)]
    for name in names:
        producer.produce(OFFSETS_TOPIC, b'{"timestamp":1,"incrementing":1}', offset_key(name, "db", "public", "t"))
    assert producer.flush(30) == 0
    assert "; did you mean " in offsets("show").out
    offsets.run()
    assert [table["table"] for table in offsets("show", "--json").json["tables"]] == [offsets.table]
    assert offsets("reset").code == 0
    assert len(stored_values(Kafka(offsets.kafka)).keys() & {offset_key(n, "db", "public", "t") for n in names}) == 2000
    for name in names:
        producer.produce(OFFSETS_TOPIC, None, offset_key(name, "db", "public", "t"))
    assert producer.flush(30) == 0


def test_import_from_connect(offsets: Offsets, unique: Callable[[str], str]) -> None:
    """A comparison shows which records the topic lacks; the import and one run send them."""
    topic = unique("connect-offsets")
    Kafka(offsets.kafka).create_topic(topic, partitions=3, config={"cleanup.policy": "compact"})
    shown = in_process("source", "run", "--dry-run", *offsets.article.arguments, "--json").json
    records = shown["connectors"][0]["tables"][0]["records"]
    producer = Producer({"bootstrap.servers": offsets.kafka, "partitioner": "murmur2_random"})
    Kafka(offsets.kafka).create_topic(offsets.article.topic, config={"cleanup.policy": "compact"}, partitions=1)
    for record in records[:4]:  # Connect never saw the fifth
        value = json.dumps(record["value"], separators=(",", ":"), ensure_ascii=False)
        producer.produce(offsets.article.topic, value.encode(), record["key"].encode())
    old = b'["article",{"protocol":"1","table":"public.terminal_acquirer"}]'  # as an older driver names it
    producer.produce(topic, b'{"timestamp_nanos":0,"incrementing":5,"timestamp":1704067500000}', old)
    assert producer.flush(30) == 0

    connect = ("--from-connect", topic, "--connect-name")
    outcome = offsets("import", *connect, "articel")
    assert outcome.code == 2
    assert "did you mean article?" in outcome.err
    [table] = offsets("import", *connect, "article", "--dry-run", "--json").json["tables"]
    assert "what the topic lacks is sent" in table["note"]
    [compared] = in_process("verify", *offsets.article.arguments, "--kafka", offsets.kafka, "--json").json["topics"]
    assert (compared["expected"], compared["missing"], compared["extra"], compared["different"]) == (5, 1, 0, 0)
    assert compared["differences"][0]["key"] == "5"
    assert offsets.stored() is None
    assert offsets("import", *connect, "article").code == 0
    assert "the next run compares every row with the topic" in offsets("show").out
    assert offsets.run() == 1
    assert sorted(offsets.keys()) == ["1", "2", "3", "4", "5"]
    assert offsets.run() == 0


def test_import_names_tables_that_are_not_read(offsets: Offsets, unique: Callable[[str], str]) -> None:
    topic = unique("connect-offsets")
    Kafka(offsets.kafka).create_topic(topic, partitions=1, config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": offsets.kafka})
    name = offsets.article.path.stem
    producer.produce(topic, b'{"incrementing":5,"timestamp":1704067500000}', offset_key(name, "x", "y", "other"))
    assert producer.flush(30) == 0
    outcome = offsets("import", "--from-connect", topic, "--dry-run")
    assert "has offsets of tables that this connector does not read: x.y.other" in outcome.err
    assert "no offset of Kafka Connect's" in outcome.out  # of this table
    assert offsets("import").code == 2
    outcome = offsets("import", "--from-connect", unique("nowhere"))
    assert outcome.code == 2
    assert "does not exist" in outcome.err


def test_a_terminal_is_asked(offsets: Offsets) -> None:
    """Scripts are not: their answer is that they ran the command."""
    offsets.run()
    words = map(str, ("source", "offsets", "reset", *offsets.article.arguments, "--kafka", offsets.kafka))
    asked = subprocess.run(
        ["script", "-qec", " ".join([*COMPACTORY, *words]), "/dev/null"],
        input="n\n", text=True, capture_output=True, timeout=60, check=False, cwd=offsets.shell.folder,
        env=offsets.shell.environment,
    )  # fmt: skip
    assert "Write this?" in asked.stdout
    assert offsets.stored() is not None


def test_every_mode_has_its_own_place(offsets: Offsets) -> None:
    """By timestamp alone, by id alone, by place; bulk has none."""
    name = offsets.article.path.stem

    def mode(number: int, **changes: object) -> None:
        altered(offsets.shell, offsets.article, name=f"{name}-{number}", **changes)
        offsets.key = offset_key(f"{name}-{number}", offsets.database, "public", "terminal_acquirer")

    mode(1, mode="bulk", timestamp__column__name=None, incrementing__column__name=None)
    assert "mode bulk sends all of it at each poll" in offsets("set", "--timestamp", "0").err
    mode(2, mode="timestamp", timestamp__column__name="updated_date")
    assert "its mode has no incrementing column" in offsets("set", "--incrementing", "3").err
    assert offsets("set", "--to-time", "2024-01-01T00:04").code == 0
    assert offsets.run() == 2
    mode(3, mode="incrementing", timestamp__column__name=None, incrementing__column__name="id")
    assert "its mode has no timestamp" in offsets("set", "--to-time", "2024-01-01").err
    assert offsets("set", "--incrementing", "3").code == 0
    assert offsets.run() == 2
    assert offsets("set", "--incrementing", "1", "--dry-run", "--json").json["tables"][0]["rows"] == 4
    assert offsets("set", "--incrementing", "1").code == 0
    assert offsets.run() == 4
    offsets.sql.execute("CREATE VIEW shown AS SELECT * FROM terminal_acquirer")
    both = {"timestamp__column__name": "updated_date", "incrementing__column__name": "id"}
    mode(4, mode="timestamp+incrementing", table__whitelist="shown", table__types="VIEW", **both)
    assert offsets("set", "--timestamp", "2024-01-01T00:02", "--incrementing", "2").code == 0
    assert offsets.run() == 3
    mode(5, query="SELECT * FROM terminal_acquirer", table__whitelist=None, table__types=None)
    offsets.article.topic = offsets.article.topic.removesuffix("terminal_acquirer")
    assert offsets("set", "--timestamp", "2024-01-01T00:04", "--incrementing", "4").code == 0
    assert offsets.run() == 1
    assert ", id 5" in offsets("show", "--table", "query").out
