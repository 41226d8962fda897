"""Reading connectors: the article's JSON unchanged, and every kind of bad input, all problems at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compactory.errors import ConfigError
from compactory_connectors.connect.setting import Status, find_setting
from compactory_connectors.source.config.connector import ConnectorConfig, Mode, SoftDelete
from compactory_connectors.source.config.files import load_connector, load_connectors, parse_connector
from compactory_connectors.source.config.keys import SETTINGS
from compactory_connectors.source.config.selection import TableName

ARTICLE = Path(__file__).parents[2] / "golden" / "terminal_acquirer.json"
URL = "jdbc:postgresql://db:5433/shop"
SECRET = "pa55-w0rd"
MINIMAL = {
    "connection.url": URL,
    "mode": "timestamp+incrementing",
    "incrementing.column.name": "id",
    "timestamp.column.name": "updated",
    "table.whitelist": "t",
    "topic.prefix": "",
}


def read(changes: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> ConnectorConfig:
    settings = {key: value for key, value in (MINIMAL | dict(changes)).items() if value is not ...}
    return parse_connector(json.dumps(settings), default_name="c", environment=environment or {})


def problems(changes: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(changes, environment)
    return caught.value.problems


@pytest.fixture
def tpp(tmp_path: Path) -> Path:
    path = tmp_path / "tpp.properties"
    path.write_text(
        f"reference-data.db.url={URL}\nreference-data.db.user=reader\n"
        f"reference-data.db.password={SECRET}\nkafka.topic.prefix=ref.\n"
    )
    return path


def test_the_article_is_accepted_unchanged(tpp: Path) -> None:
    config = load_connector(ARTICLE, {"tpp": tpp}, {})
    assert config.name == "terminal_acquirer"
    assert dict(config.connection.conninfo) == {
        "host": "db",
        "port": "5433",
        "dbname": "shop",
        "user": "reader",
        "password": SECRET,
    }
    assert config.selection.listed == (TableName(None, "terminal_acquirer"),)
    assert config.mode is Mode.TIMESTAMP_INCREMENTING
    assert (config.cursor.incrementing, config.cursor.timestamps) == ("id", ("updated_date",))
    assert config.topic("terminal_acquirer") == "ref.terminal_acquirer"
    assert [spec.alias for spec in config.transforms] == ["changeCase", "copyId", "extractId", "updatedDateFormat"]
    assert (config.poll_interval_ms, config.batch_max_rows) == (5000, 10_000)
    assert config.soft_delete is None
    assert config.transactions
    assert SECRET not in repr(config)


def test_a_query_with_a_placeholder_is_masked() -> None:
    plain = {"table.whitelist": ..., "topic.prefix": "t"}
    query = "SELECT id, at FROM t WHERE token = '${shop:token}'"
    assert read(plain | {"query": query}, {"SHOP_TOKEN": "hunter2"}).masked
    assert not read(plain | {"query": "SELECT id, at FROM t"}).masked
    assert read({"query.suffix": "AND token = '${shop:token}'"}, {"SHOP_TOKEN": "hunter2"}).masked
    assert read(plain | {"query.masked": "SELECT id, at FROM t"}).masked


def test_placeholders_from_the_environment() -> None:
    environment = {
        "TPP_REFERENCE_DATA_DB_URL": URL,
        "TPP_REFERENCE_DATA_DB_USER": "u",
        "TPP_REFERENCE_DATA_DB_PASSWORD": SECRET,
        "TPP_KAFKA_TOPIC_PREFIX": "",
    }
    assert load_connector(ARTICLE, {}, environment).topic_prefix == ""


def test_unresolved_placeholders_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_connector(ARTICLE, {}, {})
    assert [problem.split(": ")[1] for problem in caught.value.problems] == [
        "connection.url",
        "connection.user",
        "connection.password",
        "topic.prefix",
    ]
    assert all(problem.startswith(f"{ARTICLE}: ") for problem in caught.value.problems)


def test_name_and_config_as_the_rest_api_has_them() -> None:
    bare = read({})
    assert bare.name == "c"
    assert parse_connector(json.dumps({"name": "n", "config": MINIMAL}), default_name="c", environment={}).name == "n"
    assert read({"name": "inside"}).name == "inside"


def test_numbers_and_booleans_count_as_text_and_null_as_left_out() -> None:
    config = read({"poll.interval.ms": 250, "validate.non.null": False, "name": None})
    assert (config.poll_interval_ms, config.cursor.validate_non_null, config.name) == (250, False, "c")


def test_everything_that_is_honoured() -> None:
    config = read(
        {
            "table.whitelist": 'a, ref.b, "ref"."C.d", a',
            "batch.max.rows": "7",
            "topic.prefix": "p-",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "topic.creation.default.partitions": "3",
            "topic.creation.default.replication.factor": "-1",
            "topic.creation.default.min.insync.replicas": "2",
            "producer.override.compression.type": "lz4",
            "compactory.soft.delete.column": "is_active",
            "compactory.soft.delete.mode": "value",
            "compactory.transactions": "off",
            "tasks.max": "8",
            "numeric.mapping": "none",
            "dialect.name": "PostgreSqlDatabaseDialect",
        }
    )
    assert [str(table) for table in config.selection.listed] == ["a", "ref.b", "ref.C.d"]
    assert config.batch_max_rows == 7
    creation = config.topics
    assert (creation.partitions, creation.replication_factor) == (3, -1)
    assert creation.configs == {"min.insync.replicas": "2"}
    assert config.producer == {"compression.type": "lz4"}
    assert config.soft_delete == SoftDelete("is_active", tombstone=False)
    assert not config.transactions


def test_a_table_with_its_database_before_it() -> None:
    """Versions of the connector whose pgjdbc reports the database (42.7.5 and later) match such names only."""
    listed = read({"table.whitelist": 'shop.public.a,"shop"."ref"."b"'}).selection.listed
    assert list(map(str, listed)) == ["public.a", "ref.b"]


def test_names_in_quotes() -> None:
    listed = read({"table.whitelist": 'Ref."B ""b"""', "quote.sql.identifiers": "never"}).selection.listed
    assert listed == (TableName("Ref", 'B "b"'),)


def test_blanks_around_true_and_false_do_not_count() -> None:
    """Blanks around values are handled as in Kafka Connect."""
    assert not read({"validate.non.null": " False "}).cursor.validate_non_null


def test_all_problems_at_once() -> None:
    assert problems(
        {
            "connection.url": "jdbc:oracle:thin:@h",
            "mode": "bulky",
            "topic.prefix": ...,
            "poll.intervall.ms": "1",
            "poll.interval.ms": "soon",
            "query": "select 1",
            "consumer.override.group.id": "g",
            "transforms": "a,b",
            "transforms.a.type": "ChangeKase$Value",
            "transforms.b.type": "org.apache.kafka.connect.transforms.ValueToKey",
            "transforms.b.field": "id",
            "transforms.x.type": "y",
            "value.converter": "io.confluent.connect.avro.AvroConverter",
        }
    ) == [
        "poll.intervall.ms: unknown key; did you mean poll.interval.ms?",
        "consumer.override.group.id: a source consumes nothing; leave it out",
        "mode: must be one of bulk, incrementing, timestamp, timestamp+incrementing, not 'bulky': did you mean bulk?",
        "poll.interval.ms: must be a whole number of at least 1, not 'soon'",
        (
            "connection.url: jdbc:oracle is not a Postgres URL; only Postgres is supported; "
            "expected jdbc:postgresql://HOST[:PORT][,HOST…]/DATABASE[?NAME=VALUE&…] or postgresql://…"
        ),
        "table.whitelist: is given beside query; drop one of them",
        "value.converter.schema.registry.url: missing; give the address of the Schema Registry",
        "transforms.x.type: x is not in transforms",
        (
            "transforms.a.type: ChangeKase$Value is not a transform that Compactory knows; "
            "did you mean com.github.jcustenborder.kafka.connect.transform.common.ChangeCase$Value?"
        ),
        "transforms.b.field: unknown option of ValueToKey; did you mean fields?",
        "transforms.b.fields: missing; fields of the value that make the key",
        "topic.prefix: missing; the topic of a table is this and the table's name",
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"mode": "timestamp+increment"},
            (
                "mode: must be one of bulk, incrementing, timestamp, timestamp+incrementing, "
                "not 'timestamp+increment': did you mean timestamp+incrementing?"
            ),
        ),
        ({"mode": ...}, "mode: missing; set it to bulk, incrementing, timestamp or timestamp+incrementing"),
        (
            {"timestamp.column.name": ""},
            "timestamp.column.name: missing; mode timestamp+incrementing needs the column of the last change",
        ),
        (
            {"table.whitelist": ..., "mode": "bulk", "incrementing.column.name": ..., "timestamp.column.name": ...},
            "table.whitelist: missing; name the tables to poll, separated by commas",
        ),
        (
            {"table.include.list": "a.*"},
            (
                "table.include.list: is given beside table.whitelist, incrementing.column.name, timestamp.column.name; "
                "Kafka Connect takes either table.whitelist, table.blacklist, incrementing.column.name, "
                "timestamp.column.name, or "
                "table.include.list, table.exclude.list, incrementing.column.mapping, timestamp.columns.mapping"
            ),
        ),
        ({"table.blacklist": "b"}, "table.blacklist: is given beside table.whitelist; drop one of them"),
        (
            {"table.exclude.list": "b", "table.whitelist": ...},
            "table.exclude.list: needs table.include.list, of which it takes tables away",
        ),
        (
            {"table.include.list": "(", "table.whitelist": ...},
            (
                "table.include.list: must be regular expressions, not '(': is not a regular expression that is"
                " supported (missing ), unterminated subpattern at position 0)"
            ),
        ),
        (
            {"table.types": "VIEWS"},
            "table.types: must be of TABLE, PARTITIONED TABLE, VIEW, MATERIALIZED VIEW, FOREIGN TABLE, not 'VIEWS'",
        ),
        (
            {"table.types": "TABLE,SYSTEM TABLE"},
            (
                "table.types: must not name SYSTEM TABLE, not 'TABLE,SYSTEM TABLE': "
                "the system's and temporary tables can't be polled"
            ),
        ),
        (
            {"timestamp.columns.mapping": "a:b"},
            "timestamp.columns.mapping: must be regex:[column|column], separated by commas, not 'a:b'",
        ),
        (
            {"incrementing.column.mapping": "a"},
            "incrementing.column.mapping: must be regex:column, separated by commas, not 'a'",
        ),
        ({"query": "SELECT 1", "query.masked": "SELECT 2"}, "query.masked: is given beside query; drop one of them"),
        ({"query": "UPDATE t SET a = 1", "table.whitelist": ...}, "query: must begin with SELECT or WITH"),
        (
            {"query": "SELECT 1", "table.whitelist": ..., "topic.prefix": ""},
            "topic.prefix: missing; with a query it is the whole name of the topic",
        ),
        (
            {"query": "SELECT 1", "table.whitelist": ..., "incrementing.column.name": ...},
            (
                "incrementing.column.name: missing; with a query, mode timestamp+incrementing can't find the column by "
                "itself"
            ),
        ),
        ({"topic.prefix": "a b"}, "topic.prefix: must hold letters of ASCII, digits, . _ and - only, not 'a b'"),
        (
            {"topic.creation.groups": "many"},
            (
                "topic.creation.groups: a connector's new topics are alike; create the others yourself: "
                "compactory topic create"
            ),
        ),
        (
            {"topic.creation.default.partitions": "0"},
            "topic.creation.default.partitions: must be a whole number of at least 1, or -1, not '0'",
        ),
        (
            {"mode": "incrementing", "compactory.soft.delete.column": "a"},
            (
                "compactory.soft.delete.column: mode incrementing sends new rows only and never sees a deactivation; "
                "use timestamp+incrementing"
            ),
        ),
        ({"table.whitelist": "a.b.c"}, "table.whitelist: 'a.b.c' is not a table; write table or schema.table"),
        ({"table.whitelist": "a..b"}, "table.whitelist: 'a..b' is not a table; write table or schema.table"),
        (
            {"connector.class": "io.debezium.connector.postgresql.PostgresConnector"},
            (
                "connector.class: must be one of io.confluent.connect.jdbc.JdbcSourceConnector, JdbcSourceConnector, "
                "JdbcSource, "
                "not 'io.debezium.connector.postgresql.PostgresConnector': "
                "Compactory stands in for this connector only"
            ),
        ),
        (
            {"numeric.mapping": "best"},
            (
                "numeric.mapping: must be one of none, precision_only, best_fit, best_fit_eager_double, not 'best': "
                "did you mean best_fit?"
            ),
        ),
        (
            {"query.retry.attempts": "x"},
            "query.retry.attempts: must be a whole number of at least 0, or -1, not 'x'",
        ),
        (
            {"mode": "bulk", "compactory.bulk.deletes": "on", "query.suffix": "LIMIT 5"},
            "compactory.bulk.deletes: a query.suffix may leave out rows that are there; drop one",
        ),
        ({"timestamp.initial": "now"}, "timestamp.initial: must be a whole number, not 'now'"),
        ({"compactory.transactions": "true"}, "compactory.transactions: must be on or off, not 'true'"),
        (
            {"compactory.soft.delete.mode": "value"},
            "compactory.soft.delete.column: missing; compactory.soft.delete.mode needs it",
        ),
        (
            {"compactory.transactions": "off", "exactly.once.support": "required"},
            "compactory.transactions: off contradicts exactly.once.support=required; drop one of them",
        ),
        (
            {"producer.override.transactional.id": "x"},
            "producer.override.transactional.id: is made of the connector's name; leave it out",
        ),
        (
            {"producer.override.lingr.ms": "5"},
            (
                "producer.override.lingr.ms: Kafka property 'lingr.ms': No such configuration property: \"lingr.ms\";"
                " did you mean 'linger.ms'?"
            ),
        ),
        (
            {"producer.override.acks": "1"},
            "producer.override.acks: must be all, or a committed row can be lost; leave it out",
        ),
        (
            {"producer.override.enable.idempotence": "false"},
            "producer.override.enable.idempotence: transactions need true; leave it out",
        ),
        (
            {"key.converter": "StringConverter"},
            (
                "key.converter: StringConverter is not a converter that Compactory knows; "
                "did you mean org.apache.kafka.connect.storage.StringConverter?"
            ),
        ),
        (
            {"value.converter.schema.enable": "false"},
            "value.converter.schema.enable: unknown option of JsonConverter; did you mean schemas.enable?",
        ),
        (
            {"value.converter.schemas.enable": "maybe"},
            "value.converter.schemas.enable: must be true or false, not 'maybe'",
        ),
        ({"transforms": "a,a"}, "transforms: a is listed more than once"),
        ({"transforms": "a"}, "transforms.a.type: missing; name the Java class of the transform"),
        (
            {"transforms": "a", "transforms.a.type": "org.apache.kafka.connect.transforms.Cast$Value"},
            (
                "transforms.a.spec: missing; field:type pairs, or one type for the whole key or value; types: int8, "
                "int16, int32, int64, float32, float64, boolean, string"
            ),
        ),
        ({"config.x": {"a": 1}}, "config.x: must be text, a number, true or false"),
    ],
)
def test_one_problem(changes: dict[str, Any], expected: str) -> None:
    assert expected in problems(changes)


def test_what_a_placeholder_stands_for_is_never_shown() -> None:
    messages = problems(
        {"poll.interval.ms": "${p:poll}", "connection.url": "${p:url}"}, {"P_POLL": SECRET, "P_URL": SECRET}
    )
    assert messages[0] == "poll.interval.ms: must be a whole number of at least 1, not what ${p:poll} stands for"
    assert SECRET not in "".join(messages)


@pytest.mark.parametrize(
    ("key", "value", "also"),
    [
        ("value.converter", "${p:x}", {}),
        ("value.converter.decimal.format", "${p:x}", {}),
        ("transforms", "${p:x}", {}),
        ("transforms.k.type", "${p:x}", {"transforms": "k"}),
        ("table.whitelist", "a.b.c${p:x}", {}),
        ("connection.url", URL + "?x${p:x}=1", {}),
        ("topic.creation.default.partitions", "${p:x}", {}),
        ("producer.override.compression.type", "${p:x}", {}),
    ],
)
def test_nor_does_what_a_part_complains_of(key: str, value: str, also: dict[str, str]) -> None:
    """Converters, transforms and the client library quote what they do not take."""
    messages = "\n".join(problems({key: value, **also}, {"P_X": SECRET}))
    assert "${p:x}" in messages
    assert SECRET not in messages


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": ?}', "line 1, column 7: not valid JSON: Expecting value"),
        ('{\n "a": 1\n "b": 2\n}', "line 3, column 2: not valid JSON: Expecting ',' delimiter"),
        ("7", 'must be a JSON object: the configuration, or {"name": …, "config": {…}}'),
        ("[]", "the list of connectors is empty"),
        ('{"mode": "a", "mode": "b"}', "mode: given more than once"),
        (
            '{"name": "a", "config": {"name": "b"}}',
            "name: is a beside config, and b in it; drop one of them",
        ),
        ('{"config": {}, "tables": "x"}', "beside name and config there is tables; move it into config"),
    ],
)
def test_bad_json(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_connector(text, default_name="c", environment={})
    assert caught.value.problems == [expected]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, binary = tmp_path / "missing.json", tmp_path / "binary.json"
    binary.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match=r"missing\.json: can't be read: No such file or directory$"):
        load_connector(missing)
    with pytest.raises(ConfigError, match=r"binary.json: is not UTF-8 text \(byte 7\)$"):
        load_connector(binary)


def test_moot_keys_are_noted() -> None:
    config = read(
        {
            "tasks.max": "3",
            "value.converter.plugin.version": "1",
            "producer.override.max.block.ms": "1",
            "timestamp.initial": 5,
            "mode": "bulk",
        }
    )
    notes = "\n".join(config.notes)
    for key in (
        "tasks.max",
        "value.converter.plugin.version",
        "producer.override.max.block.ms",
        "timestamp.initial",
        "timestamp.column.name",
    ):
        assert f"{key}: has no effect" in notes


def test_several_connectors_of_one_file(tmp_path: Path) -> None:
    """A list, and what Connect's REST API answers to ?expand=info; every problem names its connector."""
    several = [{"name": name, "config": MINIMAL} for name in ("a", "b")]
    expanded = {item["name"]: {"info": {**item, "tasks": []}} for item in several}
    path = tmp_path / "several.json"
    for document in (several, expanded):
        path.write_text(json.dumps(document))
        assert [config.name for config in load_connectors(path, environment={})] == ["a", "b"]
    several[1]["config"] = MINIMAL | {"mode": "x"}
    path.write_text(json.dumps(several))
    with pytest.raises(ConfigError, match=r"several.json: b: mode: must be one of"):
        load_connectors(path, environment={})


def test_the_properties_of_a_standalone_worker(tmp_path: Path) -> None:
    path = tmp_path / "shop.properties"
    path.write_text("# comment\n" + "".join(f"{key}={value}\n" for key, value in MINIMAL.items()))
    assert load_connector(path, environment={}).name == "shop"


def test_every_default_is_valid_and_every_refusal_says_why() -> None:
    for setting in SETTINGS:
        assert setting.meaning
        assert bool(setting.note) == (setting.status is not Status.HONOURED)
        if setting.default is not None:
            setting.parse(setting.default)


def test_keys_are_found_exactly_before_by_prefix() -> None:
    assert find_setting("topic.creation.default.partitions", SETTINGS).name == "topic.creation.default.partitions"  # type: ignore[union-attr]
    assert find_setting("topic.creation.default.retention.ms", SETTINGS).name == "topic.creation.default.*"  # type: ignore[union-attr]
    assert find_setting("topic.creation.x.partitions", SETTINGS).name == "topic.creation.*"  # type: ignore[union-attr]
    assert find_setting("topic.creation.", SETTINGS) is None
    assert find_setting("nonsense", SETTINGS) is None


@pytest.mark.parametrize(
    "changes",
    [
        {},  # JsonConverter writes schemas unless told otherwise
        {"value.converter": "org.apache.kafka.connect.storage.StringConverter"},
    ],
)
def test_a_function_of_the_users_needs_json_without_schemas(changes: dict[str, str]) -> None:
    function = {"compactory.transform": "copy:copy"}
    refused = (
        "compactory.transform: values must be JSON without schemas; set value.converter to"
        " org.apache.kafka.connect.json.JsonConverter and value.converter.schemas.enable=false"
    )
    assert problems(changes | function) == [refused]
    free = {"value.converter.schemas.enable": "false"}
    assert len(read(free | function).transforms) == 1
