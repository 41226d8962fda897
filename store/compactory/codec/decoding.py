"""Conversion of bytes to values: JSON, envelopes, the user's types, and the fields of keys and indexes. Pure.

All functions raise DecodeError, or the error of the user's own callable, for a value that does not fit the directory.
The table turns the error into a bad record.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Never, TypeVar, cast, get_origin

import msgspec

from compactory.directory import Directory, Envelope, Unwrap
from compactory.errors import ConfigError, DecodeError
from compactory.records import Entry

__all__ = [
    "Document",
    "Term",
    "check_objects",
    "check_utf8",
    "decode_json",
    "decoder",
    "document_reader",
    "encode_lookup_key",
    "field_reader",
    "field_values",
    "is_msgspec_type",
    "json_schema",
    "lookup_key_from",
    "lookup_keys_from",
    "make_term",
    "read_only_decoder",
    "term_values",
]

T = TypeVar("T")
Document = dict[str, Any]
Term = Any  # the hashable form of one or several indexed values

decode_json: Callable[[bytes], Any] = msgspec.json.Decoder().decode
"""Decodes JSON of any kind. Whole numbers of any size stay exact: orjson rounds those beyond 64 bits."""

_QUOTED_VALUE = re.compile("value .*(?= - at `)", re.DOTALL)  # msgspec quotes the value of an enum; errors must not


def decoder(directory: Directory[T], *, checked: bool = False) -> Callable[[Any], T]:
    """Return the function that decodes the value of a record for a lookup.

    The function takes an `Entry` where the directory ``decodes_entries``, bytes otherwise. With ``checked`` all values
    were decoded before without an error, so it does not check again that they are JSON objects.
    """
    if checked and directory.decode is dict and directory.envelope == "none":
        return cast("Callable[[bytes], T]", decode_json)
    decode_payload: Callable[[Any], Any] = _plain_decoder(directory.decode)
    if directory.envelope == "none":
        return cast("Callable[[bytes], T]", decode_payload)
    read_document = document_reader(directory.envelope)

    def decode(value: bytes) -> Any:
        document = _existing(read_document(value))
        return document if directory.decode is dict else decode_payload(msgspec.json.encode(document))

    def decode_entry(entry: Entry) -> Any:
        document = _existing(read_document(entry.value))
        return decode_payload(entry._replace(value=msgspec.json.encode(document)))

    def _existing(document: Document | None) -> Document:
        if document is None:
            raise DecodeError(f"the {directory.envelope} envelope holds a deletion, not a value")
        return document

    return cast("Callable[[Any], T]", decode_entry if directory.decodes_entries else decode)


def is_msgspec_type(decode: Any) -> bool:
    """Return True if msgspec reads this type. Otherwise ``decode`` is a callable that takes bytes."""
    if not isinstance(decode, type):
        return get_origin(decode) is not None
    attributes = ("__dataclass_fields__", "__attrs_attrs__", "__total__")  # of dataclasses, attrs classes, TypedDicts
    if issubclass(decode, msgspec.Struct | list | tuple | set | frozenset):
        return True
    return any(hasattr(decode, attribute) for attribute in attributes)


def json_schema(decode: Any) -> str:
    """Return the JSON Schema of a type as text; empty for a callable and for a type without a JSON Schema."""
    with suppress(Exception):  # JSON Schema can't describe every type
        if hasattr(decode, "__pydantic_validator__"):
            from pydantic import TypeAdapter

            return repr(TypeAdapter(decode).json_schema())
        if is_msgspec_type(decode):
            return repr(msgspec.json.schema(decode))
    return ""


def read_only_decoder(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a decoder whose values can't be changed: objects as mapping proxies, lists as tuples."""

    def read_only(value: Any) -> Any:
        if type(value) is dict:
            return MappingProxyType({name: read_only(item) for name, item in value.items()})
        return tuple(map(read_only, value)) if type(value) is list else value

    return lambda value: read_only(decode(value))


def document_reader(envelope: Envelope | Unwrap) -> Callable[[bytes], Document | None]:
    """Return the function that reads the JSON object in a value. It returns None for an envelope of a deletion."""
    if callable(envelope):
        return lambda value: _payload("what envelope made of the value", envelope(value))
    if envelope == "connect":
        return _read_connect
    if envelope == "debezium":
        return _read_debezium
    return _read_object


class _AnyObject(msgspec.Struct):
    """A JSON object with any fields. Reading one checks the JSON and builds no values."""


_read_any_object = msgspec.json.Decoder(_AnyObject).decode


def check_objects(values: list[bytes]) -> None:
    """Raise an error unless each value is a JSON object. Takes a third of the time of reading them.

    Accepts numbers beyond the range of a double, such as 1e400, which a reader refuses.
    """
    check_utf8(values)
    deque(map(_read_any_object, values), maxlen=0)


def check_utf8(texts: Iterable[bytes]) -> None:
    """Raise UnicodeDecodeError unless each text is UTF-8. Joins the texts by NUL, which ends any UTF-8 sequence."""
    joined = b"\0".join(texts)
    if not joined.isascii():
        joined.decode()


def field_reader(field: str) -> Callable[[Document], Any]:
    """Return the function that reads the field ``"a.b"`` of a document; it returns None for a missing field.

    A field whose own name contains the dots goes before a nested field.
    """
    parts = field.split(".")
    if len(parts) == 1:
        return lambda doc: doc.get(field)

    def read(doc: Document) -> Any:
        value: Any = doc.get(field)
        if value is not None:
            return value
        value = doc
        for part in parts:
            if not isinstance(value, dict):
                return None
            value = value.get(part)
        return value

    return read


def encode_lookup_key(text: str) -> bytes:
    """Return the bytes of a lookup key. Half a surrogate pair gives bytes that no topic has: keys must be UTF-8."""
    return text.encode(errors="surrogatepass")


def lookup_key_from(field: str, value: Any) -> bytes:
    """Return the lookup key for the value of a field: text as UTF-8, a whole number in decimal."""
    if type(value) is str:
        return value.encode()
    if type(value) is int:
        return b"%d" % value
    kind = "missing or null" if value is None else type(value).__name__
    raise DecodeError(f"key field {field!r} is {kind}; text or a whole number is needed")


def field_values(field: str, docs: Sequence[Document]) -> list[Any]:
    """Return the value of one field in many documents, as `field_reader` reads it."""
    if "." not in field:
        return [doc.get(field) for doc in docs]
    return list(map(field_reader(field), docs))


def lookup_keys_from(field: str, docs: Sequence[Document]) -> list[bytes]:
    """Return the lookup keys of many documents, as `lookup_key_from` makes them."""
    values = field_values(field, docs)
    if set(map(type, values)) == {str}:
        return list(map(str.encode, values))
    return [lookup_key_from(field, value) for value in values]


def make_term(fields: Sequence[str], values: Sequence[Any]) -> Term | None:
    """Return the index term for the values of the indexed fields; None if one of them is null or missing.

    A boolean differs from 0 and 1, which Python takes for equal.
    """
    parts = [_term_part(field, value) for field, value in zip(fields, values, strict=True)]
    if None in parts:
        return None
    return parts[0] if len(parts) == 1 else tuple(parts)


def term_values(fields: Sequence[str], term: Term) -> tuple[Any, ...]:
    """Return the values of a term: the inverse of `make_term`."""
    parts = (term,) if len(fields) == 1 else term
    return tuple(part[1] if isinstance(part, tuple) else part for part in parts)


def _term_part(field: str, value: Any) -> Any:
    if isinstance(value, bool):
        return ("bool", value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise DecodeError(f"index field {field!r} holds {type(value).__name__}; text, numbers and booleans can be indexed")


def _plain_decoder(decode: Any) -> Callable[[bytes], Any]:
    if decode is dict:
        return _read_object
    if decode is bytes:
        return bytes
    if decode is str:
        return bytes.decode
    if hasattr(decode, "model_validate_json"):
        return cast("Callable[[bytes], Any]", decode.model_validate_json)
    if hasattr(decode, "__pydantic_validator__"):
        from pydantic import TypeAdapter

        return TypeAdapter(decode).validate_json
    if is_msgspec_type(decode):
        return _msgspec_decoder(decode)
    return cast("Callable[[bytes], Any]", decode)


def _msgspec_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return the function that reads a type by msgspec. Raises ConfigError for a type that msgspec can't read."""
    name = kind.__name__ if isinstance(kind, type) else kind
    try:
        decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind, dec_hook=_refuse).decode
    except NameError as error:
        raise ConfigError(f"decode: the annotations of {name} need {error.name!r} at its module level") from None
    except TypeError as error:
        raise ConfigError(f"decode: {name}: {error}; take pydantic or a callable") from None

    def read(value: bytes) -> Any:
        try:
            return decode(value)
        except msgspec.ValidationError as error:
            raise DecodeError(_QUOTED_VALUE.sub("value", str(error))) from None
        except msgspec.DecodeError as error:
            raise DecodeError(f"the value is not JSON: {error}") from None

    return read


def _refuse(kind: Any, _value: object) -> Never:
    """Raise TypeError for a class inside a type that msgspec reads. msgspec calls this for unknown classes."""
    raise TypeError(
        f"Expected a type that msgspec reads, got {kind.__name__}; take pydantic's TypeAdapter(…).validate_json"
    )


def _read_object(value: bytes) -> Document:
    try:
        document = decode_json(value)
    except msgspec.DecodeError as error:
        raise DecodeError(f"the value is not JSON: {error}") from None
    if type(document) is not dict:
        raise DecodeError(f"the value is JSON of type {type(document).__name__}; an object is needed")
    return document


def _read_connect(value: bytes) -> Document | None:
    envelope = _read_object(value)
    if "payload" not in envelope:
        raise DecodeError("the value has no 'payload', so it is not in a Connect envelope (schemas.enable=true)")
    return _payload("payload", envelope["payload"])


def _read_debezium(value: bytes) -> Document | None:
    envelope = _read_object(value)
    if "payload" in envelope and "schema" in envelope:
        envelope = _payload("payload", envelope["payload"]) or {"op": "d"}
    if envelope.get("op") == "d":
        return None
    if "after" not in envelope:
        raise DecodeError("the value has no 'after', so it is not a Debezium change event")
    return _payload("after", envelope["after"])


def _payload(name: str, payload: Any) -> Document | None:
    if payload is not None and type(payload) is not dict:
        raise DecodeError(f"{name!r} is {type(payload).__name__}; an object or null is needed")
    return payload
