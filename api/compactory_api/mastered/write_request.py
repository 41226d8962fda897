"""Reads operations from the bodies and headers of requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from compactory.codec.whole_numbers import beyond_64_bits
from compactory.write.operation import LONGEST_IDEMPOTENCY_KEY, Kind, Operation

from ..http.problem import BadRequest
from ..http.request import check_media

__all__ = ["JSON", "MEDIA_TYPES", "NDJSON", "check_bulk", "line_operation", "operation_of", "value_of"]

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
    for name in _CONDITIONS:
        if name.replace("_", "-") in headers:
            raise BadRequest(f"{name.replace('_', '-')}: a bulk write takes it in its lines, as {name}")


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
    fields = value_of(line)
    if not isinstance(fields, dict) or fields.get("op") not in MEDIA_TYPES:
        raise BadRequest(f'a line must be {{"op": …, "key": …, "value": …}} with op one of {", ".join(MEDIA_TYPES)}')
    kind, key = fields["op"], fields.get("key")
    if len(fields) == 3 and type(key) is str and "value" in fields:  # a fast path for the usual line
        return Operation(kind=kind, key=key, value=fields["value"])
    texts = [fields.get(name) for name in ("key", *_CONDITIONS)]
    if fields.keys() - _FIELDS or not all(text is None or isinstance(text, str) for text in texts):
        raise BadRequest(f"a line has these fields, all text but value: {', '.join(sorted(_FIELDS))}")
    if kind != "post" and key is None:
        raise BadRequest("key: is missing")
    headers = {name.replace("_", "-"): fields[name] for name in _CONDITIONS if fields.get(name) is not None}
    for name in ("if-match", "if-none-match"):
        etag = headers.get(name, "*")
        if etag != "*" and '"' not in etag:  # without quotes, as results of lines have it
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
