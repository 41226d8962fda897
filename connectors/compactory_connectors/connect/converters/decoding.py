"""Bytes of a record become a value with its schema: what the converters write, read."""

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
    """A value; ``schema`` None: it has none, and its types are those of JSON."""

    schema: Schema | None
    value: Any


Decoder = Callable[[Sequence[bytes]], Iterable[Decoded]]
"""Bytes of many records → their values, mostly by C. Raises RowError where one of them is none."""


def decoded(schemas: Iterable[Schema | None], values: Iterable[Any]) -> Iterable[Decoded]:
    """Values with their schemas; made in a third of the time of the constructor."""
    return map(partial(tuple.__new__, Decoded), zip(schemas, values))  # noqa: B905 - one schema may be repeated


_MAY_BE_ROUNDED = {float, dict, list}
_LONG_NUMBER = re.compile(rb"[0-9.]{17}")


def loads(texts: Sequence[bytes]) -> list[Any]:
    """JSON; numbers of more digits than a double holds are Decimals. Raises RowError."""
    try:
        found = list(map(orjson.loads, texts))
        fields = chain.from_iterable(item.values() for item in found if item.__class__ is dict)
        if _MAY_BE_ROUNDED.isdisjoint(map(type, fields)) or not _LONG_NUMBER.search(b" ".join(texts)):
            return found
        long = [_LONG_NUMBER.search(text) is not None for text in texts]
        return [json.loads(text, parse_float=Decimal) if long[n] else found[n] for n, text in enumerate(texts)]
    except ValueError:
        raise RowError("is not JSON") from None


_PAYLOAD = b',"payload":'


class Enveloped:
    """JSON with its schema. Records of one table begin alike: the schema of the last ones is not parsed again."""

    def __init__(self) -> None:
        self._known: dict[bytes, Schema | None] = {}

    def __call__(self, raws: Sequence[bytes]) -> Iterable[Decoded]:
        """The payloads with their schemas. Raises RowError."""
        head = raws[0].partition(_PAYLOAD)[0]
        start = head + _PAYLOAD
        if head in self._known and all(map(bytes.startswith, raws, repeat(start))):
            payloads = [raw[len(start) : raw.rindex(b"}")] for raw in raws]
            return decoded(repeat(self._known[head]), loads(payloads))
        return map(self._parsed, raws)

    def _parsed(self, raw: bytes) -> Decoded:
        head, _, payload = raw.partition(_PAYLOAD)
        (found,) = loads([raw])
        if not isinstance(found, dict) or not {"schema", "payload"} <= found.keys():
            raise RowError(
                "has no schema and payload, which schemas.enable=true expects; set converter.schemas.enable=false"
            )
        schema = None if found["schema"] is None else _schema_of_json(orjson.dumps(found["schema"]))
        if payload.endswith(b"}") and orjson.dumps({"schema": found["schema"]})[:-1] == head:
            if len(self._known) > 16:
                self._known.clear()
            self._known[head] = schema
        return Decoded(schema, found["payload"])


@lru_cache(maxsize=256)
def _schema_of_json(text: bytes) -> Schema:
    """The schema that JsonConverter wrote. Raises RowError."""
    return _schema(orjson.loads(text))


def _schema(found: Any) -> Schema:
    try:
        fields = tuple(Field(item["field"], _schema(item)) for item in found.get("fields", ()))
        return Schema(
            type=Type(found["type"]),
            optional=bool(found.get("optional", False)),
            name=found.get("name"),
            version=found.get("version"),
            parameters=tuple((found.get("parameters") or {}).items()),
            fields=fields,
            keys=_schema(found["keys"]) if "keys" in found else None,
            values=_schema(next(found[name] for name in ("items", "values") if name in found))
            if "items" in found or "values" in found
            else None,
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        raise RowError("its schema is none of Kafka Connect's") from None


def java_value(schema: Schema) -> Callable[[Any], Any] | None:
    """From JSON to what stands for a value of the schema; None: it is the same."""
    if schema.name == DECIMAL:
        scale = int(dict(schema.parameters).get("scale", "0"))
        return lambda value: _decimal(value, scale)
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
_BARE = 127  # Connect's scale of a numeric column that declares none


def _decimal(value: Any, scale: int) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, int | float):
        return Decimal(str(value))
    number = _EXACT.scaleb(Decimal(int.from_bytes(_bytes(value), "big", signed=True)), -scale)
    return number.normalize(_EXACT) if scale == _BARE else number


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise RowError("a field of bytes is not Base64") from None
