"""What a value can be decoded to, and envelopes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest
import typing_extensions

from compactory import BadRecord, ConfigError, Directory, Entry, GlobalStore, Index, Token, WriteRefused
from compactory.codec.encoding import RecordEncoder
from compactory.ingest.topic_tables import definition
from tests.store.tables import Log

T = TypeVar("T")


@dataclass
class Terminal:
    id: int
    acquirer: str = "none"


class Model(pydantic.BaseModel):
    id: int


@pydantic.dataclasses.dataclass
class Checked:
    id: int = pydantic.Field(gt=0)


class Struct(msgspec.Struct):
    day: date
    city: City


class Titled(TypedDict):
    price: Decimal


class Pair(NamedTuple):
    first: int
    second: str


@attrs.define
class Attrs:
    day: date


@dataclass
class Reader:
    """A callable with options, which is a dataclass by chance."""

    field: str

    def __call__(self, value: bytes) -> Any:
        return json.loads(value)[self.field]


@dataclass
class Page(Generic[T]):
    rows: list[T]


@pytest.mark.parametrize(
    ("decode", "value", "expected"),
    [
        (dict, '{"id":1}', {"id": 1}),
        (str, "text €", "text €"),
        (bytes, b"\xff\x00", b"\xff\x00"),
        (Terminal, '{"id":1,"new column":2}', Terminal(1)),
        (Model, '{"id":1}', Model(id=1)),
        (Checked, '{"id":"1"}', Checked(id=1)),
        (int, "12", 12),
        (json.loads, "[1]", [1]),
        (Reader("id"), '{"id":1}', 1),
        (Titled, '{"price":"1.10"}', {"price": Decimal("1.10")}),
        (typing_extensions.TypedDict("Other", {"id": int}), '{"id":1}', {"id": 1}),
        (Pair, '[1,"x"]', Pair(1, "x")),
        (Attrs, '{"day":"2026-01-02"}', Attrs(date(2026, 1, 2))),
        (list, "[1]", [1]),
        (list[Terminal], '[{"id":1}]', [Terminal(1)]),
        (dict[str, int], '{"a":1}', {"a": 1}),
        (Page[int], '{"rows":[1]}', Page([1])),
        (Terminal | None, '{"id":1}', Terminal(1)),
        (Annotated[int, msgspec.Meta(gt=0)], "1", 1),
    ],
)
def test_decoders(decode: object, value: str | bytes, expected: object) -> None:
    log = Log(Directory("d", decode=decode))  # type: ignore[call-overload]
    log.put("1", value)
    assert log.view["1"] == expected


@pytest.mark.parametrize(
    ("decode", "value"),
    [
        (str, b"\xff"),
        (Terminal, "{}"),
        (Terminal, '{"id":"x"}'),
        (Model, '{"id":"x"}'),
        (Checked, '{"id":0}'),
        (int, "x"),
        (dict, "1"),
        (Titled, "{}"),
        (list[Terminal], "{}"),
        (dict[str, int], '{"a":"x"}'),
        (Annotated[int, msgspec.Meta(gt=0)], "0"),
    ],
)
def test_what_a_decoder_refuses_is_a_bad_record(decode: object, value: str | bytes) -> None:
    """Guarantee 4."""
    log = Log(Directory("d", decode=decode))  # type: ignore[call-overload]
    log.put("1", value)
    with pytest.raises(BadRecord):
        log.view["1"]


@dataclass
class City:
    name: str
    twin: City | None = None


@dataclass
class Nested:
    city: City
    maybe: Annotated[City | str | None, "about it"] = None
    cities: Sequence[City] = ()
    pair: tuple[City, ...] = ()
    tags: frozenset[str] = frozenset()
    grid: list[list[City]] = field(default_factory=list)
    by_name: Mapping[str, City | None] = field(default_factory=dict)
    anything: dict[str, Any] = field(default_factory=dict)


def test_nested_dataclasses() -> None:
    log = Log(Directory("d", decode=Nested))
    log.put(
        "1",
        """{"city":{"name":"a","twin":{"name":"b","new":1}},"maybe":"text","cities":[{"name":"c"}],"pair":[{"name":"d"}],
        "tags":["x","x"],"grid":[[{"name":"e"}]],"by_name":{"f":{"name":"f"},"none":null},"anything":{"name":"g"}}""",
    )
    assert log.view["1"] == Nested(
        City("a", City("b")), "text", [City("c")], (City("d"),), frozenset("x"), [[City("e")]],
        {"f": City("f"), "none": None}, {"name": "g"},
    )  # fmt: skip
    log.put("2", '{"city":{"name":"a"},"maybe":{"name":"b"}}')
    assert log.view["2"] == Nested(City("a"), City("b"))
    for number, bad in enumerate(
        ('{"city":null}', '{"city":"a"}', '{"city":{}}', '{"city":{"name":""},"cities":{}}',
         '{"city":{"name":""},"tags":"x"}', '{"city":{"name":""},"by_name":[]}')
    ):  # fmt: skip
        log.put(f"bad {number}", bad)
        with pytest.raises(BadRecord):
            log.view[f"bad {number}"]


@dataclass
class Untold:
    either: Terminal | City


def test_a_class_that_does_not_tell_what_is_nested_is_refused() -> None:
    """Else values would be dicts where the type says otherwise."""

    @dataclass
    class Unresolved:
        city: Missing  # type: ignore[name-defined]  # noqa: F821

    @dataclass
    class Initial:
        id: InitVar[int]

    for kind, why in (
        (Untold, "Untold: .*; take pydantic or a callable"),
        (Initial, "Initial: .*InitVar.*; take pydantic or a callable"),
        (Unresolved, "'Missing' at its module level"),
    ):
        with pytest.raises(ConfigError, match=why):
            GlobalStore("127.0.0.1:1", [Directory("d", decode=kind)])


def test_a_class_that_msgspec_does_not_read_is_named() -> None:
    log = Log(Directory("d", decode=list[Model]))
    log.put("1", '[{"id":1}]')
    [bad] = log.table.quarantine
    assert bad.error.startswith("DecodeError: Expected a type that msgspec reads, got Model; take pydantic's")


def test_a_msgspec_struct() -> None:
    log = Log(Directory("d", decode=Struct))
    log.put("1", '{"day":"2026-01-02","city":{"name":"a"},"new":1}')
    assert log.view["1"] == Struct(date(2026, 1, 2), City("a"))
    log.put("2", '{"day":"yesterday","city":{"name":"a"}}')
    with pytest.raises(BadRecord):
        log.view["2"]


NESTED = Nested(City("a", City("b")), City("c"), [], (City("d"),), frozenset("x"))


@pytest.mark.parametrize(
    ("decode", "value"),
    [
        (Struct, Struct(date(2026, 1, 2), City("a"))),
        (Nested, NESTED),
        (Model, Model(id=1)),
        (Titled, {"price": Decimal("1.10")}),
        (Attrs, Attrs(date(2026, 1, 2))),
        (list[Struct], [Struct(date(2026, 1, 2), City("a"))]),
        (dict[str, Decimal], {"a": Decimal("1.10")}),
        (Page[int], Page([1])),
    ],
)
def test_a_writer_makes_what_decode_reads(decode: Any, value: Any) -> None:
    directory = Directory("d", decode=decode, writable=True)
    key, data = RecordEncoder(directory).record("k", value)
    log = Log(directory)
    log.put(key, data)
    assert log.view["k"] == value


given: set[type] = set()


def of_record(record: Entry) -> tuple[Any, ...]:
    given.add(type(record))
    if record.value == b'{"n":0}':
        raise ValueError
    return record.key, json.loads(record.value)["n"], record.partition, record.offset, record.timestamp_ms


@pytest.mark.parametrize("options", [{}, {"cache_decoded": True}, {"max_age": 9}, {"key": "k"}])
@pytest.mark.parametrize("validate", [True, False])
def test_a_callable_that_takes_the_record(options: dict[str, Any], validate: bool) -> None:
    """Every way to read gives it key, place and time; a record that it refuses when it comes is bad."""
    directory = Directory("d", decode=of_record, indexes=[Index("n", unique=True)], **options)
    log = Log(directory, validate=validate)
    log.load([(b"a", b'{"n":1,"k":"a"}', 5), (b"b", b'{"n":2,"k":"b"}', 6)])
    a, b = ("a", 1, 0, 0, 5), ("b", 2, 0, 1, 6)
    assert given <= {Entry}
    view = log.view
    assert [view["a"], view["b"], view.get("a"), view.one(n=1), *view.find(n=2)] == [a, b, a, a, b]
    assert dict(view.items()) == dict(view.snapshot()) == dict(view.range()) == {"a": a, "b": b}
    assert list(view.values()) == [a, b]
    assert view.index("n")[2] == b
    assert view.get_many(["a"]) == {"a": a}
    if not options and validate:
        log.put("c", '{"n":0}')
        with pytest.raises(BadRecord):
            view["c"]


def test_a_callable_that_takes_the_record_has_the_payload_of_an_envelope() -> None:
    log = Log(Directory("d", decode=of_record, envelope="debezium"))
    log.put("a", '{"after":{"n":1},"op":"c"}')
    assert log.view["a"] == ("a", 1, 0, 0, 1)


def test_a_writer_checks_by_a_callable_that_takes_the_record() -> None:
    encoding = RecordEncoder(Directory("d", decode=of_record, writable=True), lambda n: b'{"n":%d}' % n)
    assert encoding.record("k", 1) == (b"k", b'{"n":1}')  # type: ignore[arg-type]
    with pytest.raises(WriteRefused):
        encoding.record("k", 0)  # type: ignore[arg-type]


def test_connect_envelope() -> None:
    log = Log(Directory("d", envelope="connect", key="id", indexes=[Index("a")]))
    log.put("1", '{"schema":{},"payload":{"id":"x","a":1}}')
    log.put("2", '{"schema":{},"payload":{"id":"y","a":1}}')
    log.put("2", '{"schema":null,"payload":null}')
    log.put("3", '{"id":"z"}')
    assert log.view == {"x": {"id": "x", "a": 1}}
    assert log.view.find(a=1) == [{"id": "x", "a": 1}]
    assert log.view.raw("x") == b'{"schema":{},"payload":{"id":"x","a":1}}'
    assert len(list(log.table.quarantine)) == 1


def test_debezium_envelope() -> None:
    log = Log(Directory("d", envelope="debezium", decode=Terminal))
    log.put("1", '{"before":null,"after":{"id":1,"acquirer":"a"},"op":"c"}')
    log.put("2", '{"schema":{},"payload":{"before":null,"after":{"id":2},"op":"r"}}')
    log.put("3", '{"before":null,"after":{"id":3},"op":"c"}')
    log.put("3", '{"before":{"id":3},"after":null,"op":"d"}')
    log.put("4", '{"nothing":1}')
    assert log.view == {"1": Terminal(1, "a"), "2": Terminal(2)}
    with pytest.raises(BadRecord):
        log.view["4"]


def unwrap(value: bytes) -> Any:
    return json.loads(value[5:])


def test_a_callable_as_envelope() -> None:
    """Such as JSON Schema's wire format: five bytes before the JSON. It works as JSON does in every other way."""
    directory = Directory("d", envelope=unwrap, decode=Nested, key="city.name", indexes=[Index("city.twin.name")])
    log = Log(directory)
    log.load([(b"1", b'\0\0\0\0\1{"city":{"name":"a","twin":{"name":"b"}}}', 1), (b"2", b"\0\0\0\0\1[]", 1)])
    assert log.view == {"a": Nested(City("a", City("b")))}
    assert log.view.find(**{"city.twin.name": "b"}) == [log.view["a"]]
    assert [bad.key for bad in log.table.quarantine] == [b"2"]
    log.put("1", b"\0\0\0\0\1null")
    assert len(log.view) == 0
    again, other = (Directory("d", envelope=envelope) for envelope in (lambda value: None, "connect"))
    assert definition([Directory("d", envelope=unwrap)], validate=True) == definition([again], validate=True)
    assert definition([again], validate=True) != definition([other], validate=True)
    with pytest.raises(ConfigError, match="exclude each other"):
        Directory("d", envelope=unwrap, writable=True)


def test_active_looks_into_the_envelope() -> None:
    log = Log(Directory("d", envelope="debezium", active="on"))
    log.put("1", '{"after":{"on":true},"op":"c"}')
    log.put("1", '{"after":{"on":false},"op":"u"}')
    assert len(log.view) == 0


def test_a_bad_definition_lists_every_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        Directory("a/b", topic="", key="", envelope="avro", indexes=[Index("x"), Index("x")])  # type: ignore[call-overload]
    assert len(caught.value.problems) == 5
    with pytest.raises(ConfigError):
        Index()
    with pytest.raises(ConfigError):
        Index("a", "a")


def test_names_default() -> None:
    directory = Directory("d", indexes=[Index("a", "b.c")])
    assert (directory.topic, directory.indexes[0].name) == ("d", "a_b.c")
    assert directory.index_over(["b.c", "a"]) == directory.indexes[0]
    assert directory == Directory("d", indexes=[Index("a", "b.c")])


@pytest.mark.parametrize("text", ["", "a", "a:1", "a:1:", "a:x:1", "a:1:-1", ":1:1", "a:1:2:3"])
def test_what_is_not_a_token(text: str) -> None:
    with pytest.raises(ConfigError, match="expected topic:partition:offset"):
        Token.parse(text)


def test_tokens_round_trip() -> None:
    token = Token("some.topic-1", 3, 42)
    assert Token.parse(str(token)) == token
    assert str(token) == "some.topic-1:3:42"
