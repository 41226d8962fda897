"""What a value can be decoded to, and envelopes."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pydantic
import pytest

from compactory import BadRecord, ConfigError, Directory, Index, Token
from tests.store.tables import Log


@dataclass
class Terminal:
    id: int
    acquirer: str = "none"


class Model(pydantic.BaseModel):
    id: int


@pytest.mark.parametrize(
    ("decode", "value", "expected"),
    [
        (dict, '{"id":1}', {"id": 1}),
        (str, "text €", "text €"),
        (bytes, b"\xff\x00", b"\xff\x00"),
        (Terminal, '{"id":1,"new column":2}', Terminal(1)),
        (Model, '{"id":1}', Model(id=1)),
        (int, "12", 12),
        (json.loads, "[1]", [1]),
    ],
)
def test_decoders(decode: object, value: str | bytes, expected: object) -> None:
    log = Log(Directory("d", decode=decode))  # type: ignore[call-overload]
    log.put("1", value)
    assert log.view["1"] == expected


@pytest.mark.parametrize(
    ("decode", "value"), [(str, b"\xff"), (Terminal, "{}"), (Model, '{"id":"x"}'), (int, "x"), (dict, "1")]
)
def test_what_a_decoder_refuses_is_a_bad_record(decode: object, value: str | bytes) -> None:
    """Guarantee 4."""
    log = Log(Directory("d", decode=decode))  # type: ignore[call-overload]
    log.put("1", value)
    with pytest.raises(BadRecord):
        log.view["1"]


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
