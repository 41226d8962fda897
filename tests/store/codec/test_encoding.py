"""A value is accepted only if a reader gets the same value: models with aliases, and fields that JSON lacks."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, computed_field
from pydantic.dataclasses import dataclass

from compactory import Directory
from compactory.codec.encoding import RecordEncoder, first_difference
from compactory.errors import WriteRefused
from compactory_connectors.jobs.handler import PayloadType


class Order(BaseModel):
    """Has an alias, as most models of JSON do, and an attribute that no other instance has."""

    order_id: int = Field(alias="orderId")
    _seen: object = PrivateAttr(default_factory=object)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    price: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        return self.price * 2


class Login(BaseModel):
    password: SecretStr


class Partial(BaseModel):
    note: str = Field("", exclude=True)


class Measured(BaseModel):
    weight: float | None = None


class Renamed(BaseModel):
    order_id: int = Field(validation_alias="read", serialization_alias="written")


@dataclass
class Paid:
    order_id: int = Field(alias="orderId")


LOST = [
    (Login, {"password": "hush-hush"}),
    (Partial, {"note": "hush-hush"}),
    (Measured, {"weight": math.inf}),
    (Measured, {"weight": math.nan}),
    (Renamed, {"read": 1}),
]


def record(kind: Any, value: Any) -> bytes:
    return RecordEncoder(Directory("orders", decode=kind)).record("k", value)[1]


def test_models_are_written_by_alias() -> None:
    data = b'{"orderId":7}'
    assert record(Order, Order(orderId=7)) == data
    assert record(Paid, Paid(orderId=7)) == data
    jobs = PayloadType("orders", list[Order])
    assert jobs.decode(jobs.encode([Order(orderId=7)]))[0].order_id == 7


@pytest.mark.parametrize(("kind", "payload"), LOST)
def test_what_would_be_read_as_something_else_is_refused(kind: Any, payload: dict[str, Any]) -> None:
    (field,) = payload
    for accept in (
        lambda: record(kind, kind(**payload)),
        lambda: PayloadType("order", kind).encode(payload),
    ):
        with pytest.raises(WriteRefused, match=rf"\b{field}\b") as refused:
            accept()
        assert "hush-hush" not in str(refused.value)


def test_computed_fields_that_a_reader_forbids() -> None:
    """A handler computes them itself; other readers would get them, and refuse."""
    jobs = PayloadType("order", Strict)
    assert jobs.decode(jobs.encode({"price": 1})).total == 2
    with pytest.raises(WriteRefused, match="total: extra_forbidden"):
        record(Strict, Strict(price=1))


@pytest.mark.parametrize("payload", [{"to": [SecretStr("hush")]}, {"to": Login(password="hush")}, {"to": math.inf}])
def test_handlers_of_any_json_get_no_mask_and_no_null_for_a_number(payload: Any) -> None:
    with pytest.raises(WriteRefused):
        PayloadType("order").encode(payload)


@pytest.mark.parametrize(
    ("value", "back", "path"),
    [
        ({"a": 1}, {"a": 1.0}, None),
        ({"a": math.nan}, {"a": math.nan}, None),
        ({"a": [{"b": (1,)}]}, {"a": [{"b": [1]}]}, "a.0.b"),
        ({"a": 1}, {"b": 1}, ""),
        ({0: "a"}, ["a"], ""),
        (Order(orderId=1), Order(orderId=1), None),
        ([Order(orderId=1)], [Order(orderId=2)], "0.order_id"),
        (1, "1", ""),
    ],
)
def test_the_place_of_a_difference(value: Any, back: Any, path: str | None) -> None:
    assert first_difference(value, back) == path
