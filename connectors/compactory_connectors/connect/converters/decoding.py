"""Readers of JSON that the converters wrote: bytes become values with their schemas."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import lru_cache, partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import orjson

from ..record.record import RowError
from ..record.schema import DATE, DECIMAL, TIMESTAMP, Field, Schema, Type

__all__ = ["Decoded", "Decoder", "Enveloped", "decoded", "java_value", "loads"]


class Decoded(NamedTuple):
    """A value. Without ``schema`` (None) its types are those of JSON."""

    schema: Schema | None
    value: Any


Decoder = Callable[[Sequence[bytes]], Iterable[Decoded]]
"""The function from the bytes of many records to their values. Raises RowError if one of them has no value."""


def decoded(schemas: Iterable[Schema | None], values: Iterable[Any]) -> Iterable[Decoded]:
    """Return values with their schemas, in a third of the constructor's time."""
    return map(partial(tuple.__new__, Decoded), zip(schemas, values))  # noqa: B905 - one schema may be repeated


_MAY_BE_ROUNDED = {float, dict, list}
_LONG_NUMBER = re.compile(rb"[0-9.]{17}")


def loads(texts: Sequence[bytes]) -> list[Any]:
    """Return the values of JSON texts; numbers with more digits than a double has are Decimals. Raises RowError."""
    try:
        values = list(map(orjson.loads, texts))
        fields = chain.from_iterable(value.values() for value in values if value.__class__ is dict)
        if _MAY_BE_ROUNDED.isdisjoint(map(type, fields)) or not _LONG_NUMBER.search(b" ".join(texts)):
            return values
        return [
            json.loads(text, parse_float=Decimal) if _LONG_NUMBER.search(text) else value
            for text, value in zip(texts, values, strict=True)
        ]
    except ValueError:
        raise RowError("is not JSON") from None


_PAYLOAD = b',"payload":'


class Enveloped:
    """The decoder of JSON with its schema. Records of one table begin alike, so their schema is parsed once."""

    def __init__(self) -> None:
        self._schemas: dict[bytes, Schema | None] = {}

    def __call__(self, raws: Sequence[bytes]) -> Iterable[Decoded]:
        """Return the payloads with their schemas. Raises RowError."""
        head = raws[0].partition(_PAYLOAD)[0]
        start = head + _PAYLOAD
        if head in self._schemas and all(map(bytes.startswith, raws, repeat(start))):
            payloads = [raw[len(start) : raw.rindex(b"}")] for raw in raws]
            return decoded(repeat(self._schemas[head]), loads(payloads))
        return map(self._parsed, raws)

    def _parsed(self, raw: bytes) -> Decoded:
        head, _, payload = raw.partition(_PAYLOAD)
        (document,) = loads([raw])
        if not isinstance(document, dict) or not {"schema", "payload"} <= document.keys():
            raise RowError(
                "has no schema and payload, which schemas.enable=true expects; set converter.schemas.enable=false"
            )
        schema = None if document["schema"] is None else _schema_of_json(orjson.dumps(document["schema"]))
        if payload.endswith(b"}") and orjson.dumps({"schema": document["schema"]})[:-1] == head:
            if len(self._schemas) > 16:
                self._schemas.clear()
            self._schemas[head] = schema
        return Decoded(schema, document["payload"])


@lru_cache(maxsize=256)
def _schema_of_json(text: bytes) -> Schema:
    """Return the schema that JsonConverter wrote. Raises RowError."""
    return _schema(orjson.loads(text))


def _schema(document: Any) -> Schema:
    try:
        fields = tuple(Field(item["field"], _schema(item)) for item in document.get("fields", ()))
        return Schema(
            type=Type(document["type"]),
            optional=bool(document.get("optional", False)),
            name=document.get("name"),
            version=document.get("version"),
            parameters=tuple((document.get("parameters") or {}).items()),
            fields=fields,
            keys=_schema(document["keys"]) if "keys" in document else None,
            values=_schema(values) if (values := document.get("items") or document.get("values")) else None,
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        raise RowError("its schema is none of Kafka Connect's") from None


def java_value(schema: Schema) -> Callable[[Any], Any] | None:
    """Return the function from a value of JSON to one of the schema; None if they are equal."""
    if schema.name == DECIMAL:
        scale = int(dict(schema.parameters).get("scale", "0"))
        return lambda value: _decimal_value(value, scale)
    if schema.name == DATE:
        return lambda days: days * 86_400_000
    if schema.name == TIMESTAMP:
        return lambda millis: millis * 1000
    if schema.type is Type.BYTES:
        return _bytes
    if schema.type is Type.ARRAY and schema.values is not None and (inner := java_value(schema.values)) is not None:
        return lambda values: [None if value is None else inner(value) for value in values]
    return None


_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_UNDECLARED = 127  # the scale in Connect of a numeric column without one


def _decimal_value(value: Any, scale: int) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, int | float):
        return Decimal(str(value))
    number = _EXACT.scaleb(Decimal(int.from_bytes(_bytes(value), "big", signed=True)), -scale)
    return number.normalize(_EXACT) if scale == _UNDECLARED else number


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise RowError("a field of bytes is not Base64") from None
