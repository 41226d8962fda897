"""Reads operations and batches from the bodies and headers of requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import ValidationError

from compactory.codec.whole_numbers import beyond_64_bits
from compactory.write.operation import LONGEST_IDEMPOTENCY_KEY, Kind, Operation, OperationBatch, WriterCursor

from ..http.models import BatchCursor
from ..http.problem import BadRequest
from ..http.request import check_media

__all__ = ["JSON", "MEDIA_TYPES", "NDJSON", "batch_of", "check_bulk", "line_operation", "operation_of", "value_of"]

JSON = "application/json"
NDJSON = "application/x-ndjson"
_MERGE_PATCH = "application/merge-patch+json"

MEDIA_TYPES: dict[Kind, tuple[str, ...]] = {
    "put": (JSON,),
    "patch": (_MERGE_PATCH, JSON),
    "delete": (),
    "post": (JSON,),
}
"""The media types of request bodies; () for requests without a body."""

_ETAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_CONDITIONS = ("if_match", "if_none_match", "idempotency_key")
_FIELDS = {"op", "key", "value", *_CONDITIONS}


def check_bulk(headers: Mapping[str, str]) -> None:
    """Raise UnsupportedMedia, or BadRequest for a header that a bulk write has in its lines instead."""
    check_media(headers, NDJSON)
    _refuse_headers(headers, *_CONDITIONS)


def _refuse_headers(headers: Mapping[str, str], *names: str) -> None:
    for name in names:
        if name.replace("_", "-") in headers:
            raise BadRequest(f"{name.replace('_', '-')}: give it to each operation, as the field {name}")


def value_of(body: bytes) -> Any:
    """Return the JSON value of a body. Raises BadRequest, also for a whole number that orjson would round."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error.msg}") from None
    if (beyond := beyond_64_bits(body)) is not None:
        raise BadRequest(f"the number {beyond} has more than 64 bits, and would be rounded: send it as text")
    return value


def operation_of(kind: Kind, key: str | None, value: Any, headers: Mapping[str, str]) -> Operation:
    """Return the operation of a request. Raises BadRequest."""
    return Operation(
        kind=kind,
        key=key,
        value=value,
        if_match=_etags("If-Match", headers),
        if_none_match=_etags("If-None-Match", headers),
        idempotency_key=_idempotency_key(headers),
    )


def line_operation(line: bytes) -> Operation:
    """Return the operation of one line of a bulk write. Raises BadRequest."""
    return _operation_of_fields(value_of(line))


def batch_of(body: bytes, headers: Mapping[str, str]) -> OperationBatch:
    """Return the batch of a request. Raises BadRequest, UnsupportedMedia."""
    check_media(headers, JSON)
    _refuse_headers(headers, "if_match", "if_none_match")
    document = value_of(body)
    if not isinstance(document, dict) or not isinstance(document.get("operations"), list):
        raise BadRequest('the body must be {"operations": [{"op": …, "key": …, "value": …}], "cursor": {"next": …}}')
    if unknown := document.keys() - {"operations", "cursor"}:
        raise BadRequest(f"{', '.join(sorted(unknown))}: a batch has operations and a cursor only")
    operations = list[Operation]()
    for index, fields in enumerate(document["operations"]):
        try:
            operations.append(_operation_of_fields(fields))
        except BadRequest as error:
            raise BadRequest(f"operation {index}: {error}") from None
    return OperationBatch(
        operations=operations, cursor=_cursor_of(document.get("cursor")), idempotency_key=_idempotency_key(headers)
    )


def _cursor_of(fields: Any) -> WriterCursor | None:
    if fields is None:
        return None
    try:
        cursor = BatchCursor.model_validate(fields)
    except ValidationError as error:
        raise BadRequest(
            f"{'.'.join(map(str, ('cursor', *item['loc'])))}: {item['msg']}" for item in error.errors()
        ) from None
    return WriterCursor(name=cursor.name, expected=cursor.expected, next=cursor.next)


def _operation_of_fields(fields: Any) -> Operation:
    kind: Any = fields.get("op") if isinstance(fields, dict) else None
    if type(kind) is not str or kind not in MEDIA_TYPES:
        kinds = ", ".join(MEDIA_TYPES)
        raise BadRequest(f'an operation must be {{"op": …, "key": …, "value": …}} with op one of {kinds}')
    key = fields.get("key")
    if len(fields) == 3 and type(key) is str and "value" in fields:  # a fast path for the usual line
        return Operation(kind=kind, key=key, value=fields["value"])
    texts = [fields.get(name) for name in ("key", *_CONDITIONS)]
    if fields.keys() - _FIELDS or not all(text is None or isinstance(text, str) for text in texts):
        raise BadRequest(f"an operation has these fields, all text but value: {', '.join(sorted(_FIELDS))}")
    if kind != "post" and key is None:
        raise BadRequest("key: is missing")
    headers = {name.replace("_", "-"): fields[name] for name in _CONDITIONS if fields.get(name) is not None}
    for name in ("if-match", "if-none-match"):
        etag = headers.get(name, "*")
        if etag != "*" and '"' not in etag:  # without quotes, as results have it
            headers[name] = f'"{etag}"'
    return operation_of(kind, key, fields.get("value"), headers)


def _etags(name: str, headers: Mapping[str, str]) -> tuple[str, ...] | None:
    header = headers.get(name.lower())
    if header is None:
        return None
    etags = ("*",) if header.strip() == "*" else tuple(_ETAG.findall(header))
    if not etags:
        raise BadRequest(f'{name}: must be * or entity tags in quotes, as ETag has them: "…"')
    return etags


def _idempotency_key(headers: Mapping[str, str]) -> str | None:
    header = headers.get("idempotency-key")
    if header is None:
        return None
    key = header.strip().removeprefix('"').removesuffix('"')
    if not key or len(key) > LONGEST_IDEMPOTENCY_KEY or not key.isprintable():
        raise BadRequest(f"Idempotency-Key: must have 1 to {LONGEST_IDEMPOTENCY_KEY} printable characters")
    return key
