"""Requests for writes: their bodies and conditions as operations. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from compactory.codec.whole_numbers import beyond_64_bits
from compactory.write.operation import LONGEST_IDEMPOTENCY_KEY, Kind, Operation

from ..http.problem import BadRequest
from ..http.request import check_media

__all__ = ["MERGE_PATCH", "NDJSON", "check_bulk", "line_operation", "operation_of", "value_of"]

MERGE_PATCH = "application/merge-patch+json"
NDJSON = "application/x-ndjson"
_JSON = "application/json"
_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_KINDS = ("put", "patch", "delete", "post")
_CONDITIONS = ("if_match", "if_none_match", "idempotency_key")
_LINE = {"op", "key", "value", *_CONDITIONS}


def check_bulk(headers: Mapping[str, str]) -> None:
    """Raise UnsupportedMedia, or BadRequest for a header that would be meant for each line."""
    check_media(headers, NDJSON)
    for name in _CONDITIONS:
        if name.replace("_", "-") in headers:
            raise BadRequest(f"{name.replace('_', '-')}: a bulk write takes it in its lines, as {name}")


def value_of(body: bytes) -> Any:
    """Return the JSON of a body. Raises BadRequest, also for a whole number that orjson would round to a double."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error.msg}") from None
    if (beyond := beyond_64_bits(body)) is not None:
        raise BadRequest(f"the number {beyond} has more than 64 bits, and would be rounded: send it as text")
    return value


def operation_of(kind: Kind, key: str | None, value: Any, headers: Mapping[str, str]) -> Operation:
    """Return the operation of a request. Raises BadRequest."""
    wanted, unwanted, repeat = map(headers.get, ("if-match", "if-none-match", "idempotency-key"))
    return Operation(
        kind=kind,
        key=key,
        value=value,
        if_match=None if wanted is None else _tags("If-Match", wanted),
        if_none_match=None if unwanted is None else _tags("If-None-Match", unwanted),
        idempotency_key=None if repeat is None else _idempotency_key(repeat),
    )


def line_operation(line: bytes) -> Operation:
    """Return the operation of one line of a bulk write. Raises BadRequest."""
    given = value_of(line)
    if not isinstance(given, dict) or given.get("op") not in _KINDS:
        raise BadRequest(f'a line must be {{"op": …, "key": …, "value": …}} with op one of {", ".join(_KINDS)}')
    if len(given) == 3 and type(given.get("key")) is str and "value" in given:  # as most are
        return Operation(kind=given["op"], key=given["key"], value=given["value"])
    unknown = given.keys() - _LINE
    texts = [given.get(name) for name in ("key", *_CONDITIONS)]
    if unknown or not all(text is None or isinstance(text, str) for text in texts):
        raise BadRequest(f"a line has these fields, all text but value: {', '.join(sorted(_LINE))}")
    if given["op"] != "post" and given.get("key") is None:
        raise BadRequest("key: is missing")
    headers = {name.replace("_", "-"): given[name] for name in _CONDITIONS if given.get(name) is not None}
    for name in ("if-match", "if-none-match"):
        tag = headers.get(name, "*")
        if tag != "*" and '"' not in tag:  # as answers to lines have it
            headers[name] = f'"{tag}"'
    return operation_of(given["op"], given.get("key"), given.get("value"), headers)


def _tags(name: str, header: str) -> tuple[str, ...]:
    tags = ("*",) if header.strip() == "*" else tuple(_TAG.findall(header))
    if not tags:
        raise BadRequest(f'{name}: must be * or entity tags in quotes, as ETag has them: "…"')
    return tags


def _idempotency_key(header: str) -> str:
    key = header.strip().removeprefix('"').removesuffix('"')
    if not key or len(key) > LONGEST_IDEMPOTENCY_KEY or not key.isprintable():
        raise BadRequest(f"Idempotency-Key: must have 1 to {LONGEST_IDEMPOTENCY_KEY} printable characters")
    return key
