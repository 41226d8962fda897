# pyright: reportUnnecessaryTypeIgnoreComment=true
"""What type checkers know of values: `make types` has mypy and basedpyright check this file, pytest runs it.

A ``type: ignore`` proves that there is an error: both complain of one that is not needed.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, assert_type

import httpx2
import msgspec
import orjson
import pydantic
import pytest

from compactory import ConfigError, Cursor, Directory, Entry, Token, UnknownDirectory, View, WriteRefused, testing
from compactory_client import AsyncClient, Client, Stored


@dataclass(frozen=True)
class Address:
    city: str


@dataclass(frozen=True)
class Terminal:
    acquirer: str
    address: Address | None = None
    former: tuple[Address, ...] = ()
    by_year: dict[str, Address] = field(default_factory=dict)


class Model(pydantic.BaseModel):
    acquirer: str


class Struct(msgspec.Struct, frozen=True):
    acquirer: str


def numbered(value: bytes) -> int:
    return int(orjson.loads(value)["acquirer"])


def named(record: Entry) -> str:
    return f"{record.key} of {record.topic}"


PLAIN = Directory("plain")
CLASSES = Directory("classes", decode=Terminal)
MODELS = Directory("models", decode=Model)
STRUCTS = Directory("structs", decode=Struct, key="acquirer")
NUMBERS = Directory("numbers", decode=numbered)
NAMED = Directory("named", decode=named)


def test_a_store_takes_directories_of_several_types() -> None:
    with testing.store({CLASSES: {"T1": Terminal("1")}, MODELS: {"T1": Model(acquirer="1")}}) as store:
        assert_type(store[MODELS]["T1"], Model)
    with testing.store({"classes": {"T1": {}}, MODELS: {"T1": Model(acquirer="1")}}) as store:
        assert_type(store["classes"], View[Any])
    with pytest.raises(ConfigError):
        testing.store({1: {}})  # type: ignore[dict-item]


def test_a_directory_object_gives_a_view_of_its_type() -> None:
    entries = {each: {"T1": {"acquirer": "1"}} for each in (PLAIN, CLASSES, MODELS, STRUCTS, NUMBERS, NAMED)}
    with testing.store(entries) as store:
        assert_type(store["plain"], View[Any])
        assert_type(store[PLAIN]["T1"], dict[str, Any])
        assert_type(store[CLASSES], View[Terminal])
        assert_type(store.directory(CLASSES)["T1"], Terminal)
        assert_type(store[CLASSES].get("T1"), Terminal | None)
        assert_type(store[MODELS]["T1"], Model)
        assert_type(store[STRUCTS].find(acquirer="1") if STRUCTS.indexes else [], list[Struct])
        assert_type(store[NUMBERS]["T1"], int)
        assert assert_type(store[NAMED]["T1"], str) == "T1 of named"
        assert_type(next(store[CLASSES].watch(Cursor(None, {}))).new if CLASSES.keep_changes else None, Terminal | None)
        assert store[CLASSES]["T1"].acquirer == "1"
        assert store[CLASSES] is store.directory(CLASSES) is store["classes"]
        assert (store[MODELS]["T1"], store[STRUCTS]["1"], store[NUMBERS]["T1"]) == (
            Model(acquirer="1"),
            Struct(acquirer="1"),
            1,
        )
        with pytest.raises(AttributeError):
            store[CLASSES]["T1"].absent  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(TypeError):
            store[NUMBERS][1]  # type: ignore[index]
        with pytest.raises(UnknownDirectory):
            store[Directory("classes", decode=Model)]


def test_a_client_gives_values_of_the_directorys_type() -> None:
    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"acquirer": "A1"}, headers={"etag": '"t-0-7"', "compactory-offset": "t:0:7"})

    async def coroutines(client: AsyncClient) -> None:
        assert_type(await client.directory(CLASSES).get("T1"), Stored[Terminal])

    entries = Client("http://here", http=httpx2.Client(transport=httpx2.MockTransport(answer))).directory(CLASSES)
    assert_type(entries.get("T1"), Stored[Terminal])
    assert_type(entries.delete("T1", if_match="*"), Token)
    assert entries.put("T1", Terminal("A1"), create=True).value == Terminal("A1")
    with pytest.raises(WriteRefused):
        entries.put("T1", "A1")  # type: ignore[arg-type]
    assert inspect.iscoroutinefunction(coroutines)
