"""AvroConverter and JsonSchemaConverter: what they ask of a registry, and records that Confluent's clients read."""

from __future__ import annotations

import base64
import json
import socket
import struct
from collections.abc import Iterator, Mapping
from decimal import Decimal
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as Registered
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st

from compactory.errors import ConfigError, Unreachable
from compactory_connectors.connect.converters import read_converter
from compactory_connectors.connect.converters.avro_schema import AvroNames, avro_schema
from compactory_connectors.connect.converters.decoders import decoder_of
from compactory_connectors.connect.converters.schema_registry import _client
from compactory_connectors.connect.record.record import Cell, Constant, Java, Kind, RowError, StructNode
from compactory_connectors.connect.record.schema import Field, Schema, Type
from compactory_connectors.source.mapping.column_type import column_cell
from compactory_connectors.source.postgres.catalog import Column
from tests.source.conftest import Bench
from tests.source.workload import wait_until
from tests.stack.schema_registry import serving

AVRO = "io.confluent.connect.avro.AvroConverter"
JSON = "io.confluent.connect.json.JsonSchemaConverter"
STRATEGY = "io.confluent.kafka.serializers.subject."
COLUMNS = (
    Column(name="id", type="int8", not_null=True),
    Column(name="name", type="text"),
    Column(name="price", type="numeric", typmod=(10 << 16 | 2) + 4),
    Column(name="at", type="timestamptz"),
)
ROW = [b"7", "é😀".encode(), b"-12.50", b"2024-01-01 00:00:00.5+00"]
POSITIONS = {column.name: number for number, column in enumerate(COLUMNS)}


def record(name: str | None = "terminal") -> StructNode:
    cells = [cell for column in COLUMNS if (cell := column_cell(column))]
    fields = tuple(Field(cell.column, cell.schema) for cell in cells)
    return StructNode(Schema(type=Type.STRUCT, name=name, fields=fields), tuple(cells))


def converter(class_name: str, url: str = "mock://tests", **options: str) -> Any:
    given = {"schema.registry.url": url, **{name.replace("_", "."): value for name, value in options.items()}}
    made, problems = read_converter(class_name, given)
    assert not problems
    assert made is not None
    return made


def registry(url: str = "mock://tests") -> Any:
    return _client((("url", url), ("timeout", 3), ("max.retries", 0)))


def test_a_record_that_confluents_client_reads() -> None:
    render = converter(AVRO).at("t", "value").compile(record(), POSITIONS)
    written = render(ROW)
    found = AvroDeserializer(registry())(written, SerializationContext("t", MessageField.VALUE))
    assert found["id"] == 7
    assert found["name"] == "é😀"
    assert found["price"] == Decimal("-12.50")
    assert found["at"].isoformat() == "2024-01-01T00:00:00.500000+00:00"
    missing = AvroDeserializer(registry())(
        render([b"8", None, None, None]), SerializationContext("t", MessageField.VALUE)
    )
    assert missing == {"id": 8, "name": None, "price": None, "at": None}
    assert registry().get_latest_version("t-value").schema.schema_type == "AVRO"


def test_json_with_its_schema() -> None:
    written = converter(JSON).at("j", "value").compile(record(), POSITIONS)(ROW)
    assert written[0] == 0
    assert json.loads(written[5:]) == {"id": 7, "name": "é😀", "price": "+x4=", "at": 1704067200500}
    registered = registry().get_latest_version("j-value")
    assert int.from_bytes(written[1:5], "big") == registered.schema_id
    assert json.loads(registered.schema.schema_str)["properties"]["id"] == {
        "type": "integer",
        "connect.type": "int64",
        "connect.index": 0,
    }
    numeric = converter(JSON, decimal_format="numeric").at("k", "value").compile(record(), POSITIONS)(ROW)
    assert b'"price":-12.50' in numeric


def test_json_of_postgres_is_a_text_under_a_json_schema() -> None:
    cell = Cell(
        column="list",
        kind=Kind.JSON,
        schema=Schema(type=Type.STRING),
        java=Java.STRING,
        decode=lambda raw: raw.decode(),
    )
    written = converter(JSON).at("lists", "value").compile(cell, {"list": 0})([b"[1, 2]"])
    assert json.loads(registry().get_latest_version("lists-value").schema.schema_str) == {"type": "string"}
    assert written[5:] == b'"[1, 2]"'


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("TopicNameStrategy", "s-value"), ("RecordNameStrategy", "ns.thing"), ("TopicRecordNameStrategy", "s-ns.thing")],
)
def test_subjects(strategy: str, subject: str) -> None:
    named = converter(AVRO, value_subject_name_strategy=STRATEGY + strategy).at("s", "value")
    named.compile(record("ns.thing"), POSITIONS)(ROW)
    assert registry().get_latest_version(subject)


def test_a_strategy_of_records_needs_one() -> None:
    key = converter(AVRO, key_subject_name_strategy=f"{STRATEGY}RecordNameStrategy").at("s", "key")
    with pytest.raises(ValueError, match="RecordNameStrategy names schemas after records, and the key is none"):
        key.compile(column_cell(COLUMNS[0]), POSITIONS)


def test_keys() -> None:
    render = converter(AVRO).at("keys", "key").compile(column_cell(COLUMNS[0]), POSITIONS)
    assert render(ROW)[5:] == b"\x0e"
    assert registry().get_latest_version("keys-key").schema.schema_str == '"long"'
    text = converter(AVRO).at("texts", "key").compile(column_cell(COLUMNS[1]), POSITIONS)
    assert text([b"1", b"ab", None, None])[5:] == b"\2\4ab"
    assert text([b"1", None, None, None]) is None
    data = column_cell(Column(name="id", type="bytea", not_null=True))
    assert converter(AVRO).at("data", "key").compile(data, POSITIONS)([b"\\x00ff"])[5:] == b"\x00\xff"
    assert converter(AVRO).at("none", "key").compile(None, POSITIONS)(ROW) is None
    assert converter(JSON).at("nulls", "key").compile(column_cell(COLUMNS[1]), POSITIONS)([b"1", None])[5:] == b"null"


def test_constants() -> None:
    fixed = Constant(schema=Schema(type=Type.STRING, optional=True), java=Java.STRING, value="x")
    assert converter(AVRO).at("c", "key").compile(fixed, {})([])[5:] == b"\2\2x"
    nothing = Constant(schema=Schema(type=Type.STRING, optional=True), java=Java.STRING, value=None)
    assert converter(AVRO).at("c", "key").compile(nothing, {})([]) is None


def test_without_registering() -> None:
    url = "mock://lookups"
    unknown = converter(AVRO, url, auto_register_schemas="false").at("u", "value").compile(record(), POSITIONS)
    with pytest.raises(ConfigError, match=r"Schema Registry: subject u-value: .*register the schema"):
        unknown(ROW)
    wanted = converter(AVRO, url).at("u", "value").compile(record(), POSITIONS)(ROW)
    assert unknown(ROW) == wanted


@pytest.mark.parametrize("class_name", [AVRO, JSON])
def test_a_dry_run_registers_nothing(class_name: str) -> None:
    url = f"mock://dry-{class_name}"
    dry = converter(class_name, url).dry().at("d", "value")
    written = dry.compile(record(), POSITIONS)(ROW)
    assert written[:5] == bytes(5)
    assert registry(url).get_subjects() == []
    known = converter(class_name, url).at("d", "value").compile(record(), POSITIONS)(ROW)
    assert known[5:] == written[5:]
    assert dry.compile(record(), POSITIONS)(ROW) == known


def test_the_latest_version() -> None:
    url = "mock://latest"
    latest = {"auto_register_schemas": "false", "use_latest_version": "true"}

    with_docs = {
        "type": "record",
        "name": "terminal",
        "doc": "one more",
        "fields": [
            {"name": "id", "type": "long", "doc": "d"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "price", "type": ["null", "bytes"]},
            {"name": "at", "type": ["null", {"type": "long"}]},
        ],
    }
    number = registry(url).register_schema("l-value", Registered(json.dumps(with_docs), "AVRO"))
    written = converter(AVRO, url, **latest).at("l", "value").compile(record(), POSITIONS)(ROW)
    assert int.from_bytes(written[1:5], "big") == number
    registry(url).register_schema("m-value", Registered('"string"', "AVRO"))
    other = converter(AVRO, url, **latest).at("m", "value").compile(record(), POSITIONS)
    with pytest.raises(ConfigError, match="subject m-value: version 1 is not how this table's records are written"):
        other(ROW)


@pytest.mark.parametrize("class_name", [AVRO, JSON])
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, ".schema.registry.url: missing; give the address of the Schema Registry"),
        (
            {"schema.registry.url": "http://r", "use.latest.version": "true"},
            ".use.latest.version: has an effect only with auto.register.schemas=false; set that too",
        ),
        (
            {"schema.registry.url": "http://r", "basic.auth.credentials.source": "USER_INFO"},
            ".basic.auth.user.info: missing; write user:password, or placeholders of them",
        ),
        (
            {"schema.registry.url": "http://r", "schema.registry.ssl.keystore.type": "JKS"},
            ".schema.registry.ssl.keystore.type: must be 'PEM', not 'JKS': a Java key store can't be read; convert it",
        ),
        (
            {"schema.registry.url": "http://r", "schema.registry.ssl.truststore.location": "/trust.jks"},
            ".schema.registry.ssl.truststore.location: must be a PEM file, not '/trust.jks': a Java key store can't be",
        ),
        ({"schema.registry.uri": "http://r"}, ".schema.registry.uri: unknown option of"),
        ({"value.subject.name.strategy": "X"}, ".value.subject.name.strategy: must be one of"),
    ],
)
def test_bad_options(class_name: str, options: dict[str, str], problem: str) -> None:
    made, problems = read_converter(class_name, options)
    assert made is None
    assert any(found.startswith(problem) for found in problems), problems


def test_names_that_avro_forbids() -> None:
    with pytest.raises(ValueError, match=r"'my-table' is no name in Avro; set scrub\.invalid\.names=true"):
        converter(AVRO).at("t", "value").compile(record("my-table"), POSITIONS)
    scrubbed = (
        converter(AVRO, scrub_invalid_names="true").at("scrubbed", "value").compile(record("my-table"), POSITIONS)
    )
    scrubbed(ROW)
    assert json.loads(registry().get_latest_version("scrubbed-value").schema.schema_str)["name"] == "my_table"


@pytest.mark.parametrize(
    ("name", "scrubbed"),
    [
        ("my-table", "my_table"),
        ("1a b", "x1a_b"),
        ("é", "_C3_A9"),
        ("a~b*%", "a_7Eb__25"),
        ("x.1y", "x1y"),
        ("日本", "_E6_97_A5_E6_9C_AC"),
    ],
)
def test_scrubbed_names(name: str, scrubbed: str) -> None:
    """As AvroData 8.1 scrubs them."""
    made = json.loads(avro_schema(record(name).schema, AvroNames(scrub=True)))
    assert made["name"] == scrubbed
    if name in {"é", "日本"}:
        assert json.loads(avro_schema(record(name).schema, AvroNames()))["name"] == name


def test_nothing_secret_is_shown() -> None:
    secret = converter(AVRO, "http://u:hidden@r", basic_auth_user_info="a:hidden")
    assert "hidden" not in repr(secret)
    _, problems = read_converter(AVRO, {"basic.auth.user.info": "hidden", "basic.auth.credentials.source": "USER_INFO"})
    assert "hidden" not in str(problems)


class Answers(BaseHTTPRequestHandler):
    """A registry that answers by subject: the subject's number is the status."""

    seen: list[tuple[str, str | None, Any]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        self.seen.append((self.path, self.headers["Authorization"], body))
        subject = self.path.split("/")[2]
        status = int(subject.split("-")[0]) if subject[0].isdigit() else 200
        good = {} if subject.startswith("none") else {"id": 41}
        answer = json.dumps(good if status == 200 else {"error_code": status * 100 + 1, "message": "refused"})
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def do_GET(self) -> None:
        """As a proxy, a registry without the schema, and another server answer."""
        number = int(self.path.split("/")[3].partition("?")[0])
        code = {1: 0, 2: 40403, 3: 404}[number]
        body = json.dumps({"error_code": code, "message": "gone"}).encode() if code else b"<html>login</html>"
        self.send_response(404 if code else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    Answers.seen.clear()
    with serving(Answers) as port:
        yield f"127.0.0.1:{port}"


def test_the_login_and_one_question_a_table(address: str) -> None:
    login = {"basic_auth_credentials_source": "USER_INFO", "basic_auth_user_info": "ann:pass:word"}
    render = converter(AVRO, f"http://{address}", **login).at("t", "value").compile(record(), POSITIONS)
    assert not Answers.seen  # nothing is registered before there is a record
    assert {render(ROW)[:5], render(ROW)[:5]} == {b"\0\0\0\0\x29"}
    ((path, authorization, body),) = Answers.seen
    assert path.startswith("/subjects/t-value/versions")
    assert authorization == "Basic " + base64.b64encode(b"ann:pass:word").decode()
    assert json.loads(body["schema"])["connect.name"] == "terminal"


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (401, ConfigError, "refused; the login was refused; check basic.auth.user.info"),
        (403, ConfigError, "refused; the login has no right to it"),
        (409, ConfigError, "refused; the schema is not compatible with what is registered"),
        (422, ConfigError, "refused"),
        (500, Unreachable, "refused"),
    ],
)
def test_refusals(address: str, status: int, error: type[Exception], message: str) -> None:
    render = converter(AVRO, f"http://{address}").at(f"{status}", "value").compile(record(), POSITIONS)
    with pytest.raises(error, match=f"Schema Registry: subject {status}-value: .*{message}"):
        render(ROW)


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (1, Unreachable, "Schema Registry was not reached: another program answers there"),
        (2, RowError, "has schema 2, which the Schema Registry lacks"),
        (3, ConfigError, "is not registered"),
    ],
)
def test_a_record_whose_schema_is_not_there(address: str, number: int, error: type[Exception], message: str) -> None:
    """It is the record's fault, unless nothing would be there: then no record may be taken for a bad one."""
    made = converter(AVRO, f"http://{address}")
    with pytest.raises(error, match=message):
        list(decoder_of(made)([struct.pack(">bI", 0, number)]))


@pytest.mark.parametrize(
    ("class_name", "kind", "text"),
    [
        (AVRO, "PROTOBUF", 'syntax = "proto3"; message Row {}'),
        (JSON, "PROTOBUF", 'syntax = "proto3"; message Row {}'),
        (AVRO, "AVRO", '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "other.Missing"}]}'),
    ],
)
def test_a_record_of_a_schema_that_is_not_read(class_name: str, kind: str, text: str) -> None:
    number = registry().register_schema(f"foreign-{kind}", Registered(text, kind))
    with pytest.raises(RowError, match=f"has schema {number}, which can't be read as .* without references"):
        list(decoder_of(converter(class_name))([struct.pack(">bI", 0, number)]))


@pytest.mark.parametrize("written", ["ann:hidden@registry:8081", "http://r,ann:hidden@r", "ftp://ann:hidden@r"])
def test_an_address_without_a_scheme_is_refused_and_not_shown(written: str) -> None:
    made, problems = read_converter(AVRO, {"schema.registry.url": written})
    assert made is None
    assert problems == [".schema.registry.url: every address must begin with http:// or https://"]


def test_a_program_that_answers_in_place_of_a_registry(address: str) -> None:
    render = converter(AVRO, f"http://{address}").at("none", "value").compile(record(), POSITIONS)
    with pytest.raises(Unreachable, match="Schema Registry was not reached: another program answers there"):
        render(ROW)


def test_a_registry_that_is_not_there() -> None:
    render = converter(AVRO, "http://127.0.0.1:1").at("t", "value").compile(record(), POSITIONS)
    with pytest.raises(Unreachable, match=r"Schema Registry was not reached: ConnectError"):
        render(ROW)


def test_values_that_connect_refuses() -> None:
    day = column_cell(Column(name="id", type="date"))
    for class_name in (AVRO, JSON):
        render = converter(class_name).at("days", "value").compile(day, POSITIONS)
        with pytest.raises(RowError, match="column id: Connect's Date takes whole days only"):
            render([b"infinity"])


def test_null_under_a_required_schema_is_a_row_that_cannot_be_converted() -> None:
    render = converter(AVRO).at("null", "value").compile(record(), POSITIONS)
    with pytest.raises(RowError, match="Avro can't write the row under its schema"):
        render([None, *ROW[1:]])


def test_a_source_writes_avro(bench: Bench) -> None:
    """Keys, values and tombstones through real Kafka, read by Confluent's client."""
    made, _ = read_converter(AVRO, {"schema.registry.url": "mock://source"})
    changes: dict[str, Any] = {"key_converter": made, "value_converter": made, "soft_delete": True}
    bench.add("T1", "T2")
    bench.once(**changes)
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 2")
    bench.once(**changes)
    decode = AvroDeserializer(registry("mock://source"))
    read = [
        (
            decode(key, SerializationContext(bench.topic, MessageField.KEY)),
            decode(value, SerializationContext(bench.topic, MessageField.VALUE)),
        )
        for key, value in bench.records()
    ]
    assert [key for key, _ in read] == [1, 2, 2]
    assert [value and value["terminalId"] for _, value in read] == ["T1", "T2", None]
    assert bench.records()[2][1] is None
    registered = registry("mock://source").get_subjects()
    assert sorted(registered) == [f"{bench.topic}-key", f"{bench.topic}-value"]


def test_a_source_waits_for_its_registry(bench: Bench) -> None:
    """Nothing is lost while the registry is away, and the source goes on by itself."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    made, _ = read_converter(AVRO, {"schema.registry.url": f"http://127.0.0.1:{port}"})
    bench.add("T1")
    running = bench.start(value_converter=made)
    wait_until(lambda: "Schema Registry" in str(running.source.status()) or running.error, 30, "the outage to be seen")
    Answers.seen.clear()
    with serving(Answers, port):
        ((key, value),) = bench.wait_for_records(1)
        running.stop()
    assert key == b"1"
    assert value is not None
    assert value[:5] == b"\0\0\0\0\x29"


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@given(st.integers(-(2**63), 2**63 - 1), st.none() | TEXT, st.none() | st.integers(-(10**10) + 1, 10**10 - 1))
def test_records_read_back(number: int, text: str | None, cents: int | None) -> None:
    price = None if cents is None else Decimal(cents).scaleb(-2)
    render = converter(AVRO).at("random", "value").compile(record(), POSITIONS)
    row = [str(number).encode(), None if text is None else text.encode(), price and f"{price:f}".encode(), None]
    if price == 0:
        row[2] = b"0.00"
    read: Mapping[str, Any] = AvroDeserializer(registry())(
        render(row), SerializationContext("random", MessageField.VALUE)
    )
    assert (read["id"], read["name"], read["price"]) == (number, text, price)
