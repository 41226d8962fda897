"""Conversion of values to bytes, the inverse of `decoding`, with checks that every reader can use the record. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
import orjson

from compactory.codec.decoding import (
    decoder,
    document_reader,
    field_reader,
    is_msgspec_type,
    lookup_key_from,
    make_term,
)
from compactory.directory import Directory, Envelope
from compactory.errors import ConfigError, DecodeError, WriteRefused
from compactory.records import Entry

__all__ = ["RecordEncoder", "encode_value", "error_summary", "first_difference", "json_bytes"]

T = TypeVar("T")


class RecordEncoder(Generic[T]):
    """Encodes the records of one directory, and refuses records that its readers could not use. Thread-safe.

    ``encode`` turns a value into bytes. None means the inverse of the directory's ``decode``; then a value must also be
    equal after it is encoded and decoded. Raises ConfigError if ``decode`` has no known inverse.
    """

    def __init__(self, directory: Directory[T], encode: Callable[[Any], bytes] | None = None) -> None:
        self._directory = directory
        self._encode = _inverse(directory) if encode is None else encode
        self._is_inverse = encode is None
        self._decode = decoder(directory)
        self._read_document = document_reader(directory.envelope)
        self._read_key = field_reader(directory.key or "")
        self._indexed_fields = [(index.fields, [*map(field_reader, index.fields)]) for index in directory.indexes]
        self._needs_document = bool(directory.key or directory.active or directory.indexes)

    def key(self, key: str) -> bytes:
        """Return the key of a record. Raises WriteRefused for an empty text, and for a key that is not text."""
        if not isinstance(key, str):
            raise WriteRefused(f"keys of {self._directory.name!r} are text, not {type(key).__name__}")
        if not key:
            raise WriteRefused(f"a key of {self._directory.name!r} is empty")
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise WriteRefused(f"{key!r} is not a key: half of a surrogate pair has no UTF-8 form") from None

    def record(self, key: str, value: T) -> tuple[bytes, bytes]:
        """Return the key and the value of a record. Raises WriteRefused if a store would read another value or none."""
        lookup_key = self.key(key)
        if value is None:
            raise WriteRefused(f"{key!r}: None is not a value; delete() removes an entry")
        data = self._encode_value(key, value)
        try:
            entry = Entry(key, data, self._directory.topic, -1, -1, -1)
            decoded = self._decode(entry if self._directory.decodes_entries else data)
            if self._needs_document:
                self._check_fields(lookup_key, data)
            difference = first_difference(value, decoded) if self._is_inverse else None
        except DecodeError as error:
            raise WriteRefused(f"{key!r}: {error}") from error
        except Exception as error:
            raise WriteRefused(f"{key!r}: the directory's decode refuses the value: {error_summary(error)}") from error
        if difference is not None:
            raise WriteRefused(
                f"{key!r}: {difference or 'the value'} would read back as something else (JSON has no tuples, dates or"
                " NaN, and a model may leave out or mask fields); give what JSON has, or an encode= and a decode that"
                " agree"
            )
        return lookup_key, data

    def _encode_value(self, key: str, value: T) -> bytes:
        try:
            data = self._encode(value)
        except Exception as error:
            kind = type(value).__name__
            # texts of DecodeError, and of orjson's TypeError, do not quote the value
            is_public = isinstance(error, DecodeError) or (self._is_inverse and type(error) is TypeError)
            problem = str(error) if is_public else type(error).__name__
            raise WriteRefused(f"{key!r}: {kind} can't be written here: {problem}") from error
        if type(data) is not bytes:
            raise WriteRefused(f"{key!r}: encode returned {type(data).__name__}, not bytes")
        return data

    def _check_fields(self, lookup_key: bytes, data: bytes) -> None:
        """Raise DecodeError if the indexed fields can't be read, or the key field is not ``lookup_key``."""
        doc = self._read_document(data)
        if doc is None:
            return
        key = self._directory.key
        if key is not None and lookup_key_from(key, self._read_key(doc)) != lookup_key:
            raise DecodeError(f"field {key!r} holds another key; it must hold the entry's own")
        for fields, readers in self._indexed_fields:
            make_term(fields, [read(doc) for read in readers])


def _inverse(directory: Directory[Any]) -> Callable[[Any], bytes]:
    decode: Any = directory.decode
    if decode is bytes or decode is str:
        return _type_checked(decode, bytes if decode is bytes else str.encode)
    if decode is dict or hasattr(decode, "model_dump_json"):
        return _type_checked(decode, _encode_json)
    if hasattr(decode, "__pydantic_validator__"):  # a dataclass of pydantic
        from pydantic import TypeAdapter

        adapter = TypeAdapter(decode)
        return _type_checked(decode, lambda value: adapter.dump_json(value, by_alias=True))
    if is_msgspec_type(decode):
        if isinstance(decode, type) and not hasattr(decode, "__total__"):  # no TypedDict, which isinstance refuses
            return _type_checked(decode, msgspec.json.encode)
        return msgspec.json.encode  # decoding the bytes again checks the type
    raise ConfigError(
        f"directory {directory.name!r} is decoded by {getattr(decode, '__name__', decode)!r}, of which the inverse is"
        " not known: give the writer encode=, a callable that turns a value into bytes"
    )


def _type_checked(kind: type, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def encode_checked(value: Any) -> bytes:
        if not isinstance(value, kind):
            raise DecodeError(f"a {kind.__name__} is needed")
        return encode(value)

    return encode_checked


def _encode_json(value: Any) -> bytes:
    """Return the JSON of a plain value, a pydantic model, or an object of a type that msgspec knows."""
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json(by_alias=True)  # decoding validates by alias
        return text.encode()
    if is_msgspec_type(type(value)):
        return msgspec.json.encode(value)
    return json_bytes(value)


def first_difference(value: Any, decoded: Any) -> str | None:
    """Return the path of the first part in which a value differs from ``decoded``; None if they are equal.

    The path is empty if the value itself is of another kind. Models are compared by their fields, as private attributes
    are never written. NaN equals NaN. Objects of a class without ``__eq__`` count as equal.
    """
    kind: Any = type(value)
    if decoded == value or kind.__eq__ is object.__eq__ or (value != value and decoded != decoded):
        return None
    value_kind, value_parts = _parts(value)
    decoded_kind, decoded_parts = _parts(decoded)
    if value_kind is not decoded_kind or value_parts.keys() != decoded_parts.keys():
        return ""
    for name, part in value_parts.items():
        path = first_difference(part, decoded_parts[name])
        if path is not None:
            return ".".join(filter(None, (str(name), path)))
    return None


def _parts(value: Any) -> tuple[object, Mapping[Any, Any]]:
    """Return the kind of a model, mapping, list or tuple, and its fields or items. Other values equal no kind."""
    if hasattr(type(value), "model_fields"):
        fields = {name: value.__dict__.get(name) for name in type(value).model_fields}
        return "model", fields | (value.model_extra or {})
    if isinstance(value, Mapping):
        return Mapping, value
    for kind in (list, tuple):
        if isinstance(value, kind):
            return kind, dict(enumerate(value))
    return object(), {}


def error_summary(error: Exception) -> str:
    """Return the problem of a value without the value itself, which pydantic's own texts show.

    Names the fields and rules of an error of pydantic, and the class of any other error.
    """
    listed: Any = getattr(error, "errors", None)
    if not callable(listed):
        return type(error).__name__
    problems: Any = listed()
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['type']}" for item in problems)


def json_bytes(value: Any) -> bytes:
    """Return a compact copy of orjson's JSON, to be kept: orjson 3 allocates up to ten times the length."""
    return bytes(memoryview(orjson.dumps(value)))


def encode_value(value: Any, envelope: Envelope) -> bytes | None:
    """Return the bytes that a producer in this envelope writes for a value. Text and bytes stay as they are."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    data = orjson.Fragment(_encode_json(value))
    envelopes = {"none": data, "connect": {"schema": None, "payload": data}, "debezium": {"op": "u", "after": data}}
    if envelope not in envelopes:
        raise ConfigError("only the bytes of a record can be put where envelope= is a callable")
    return orjson.dumps(envelopes[envelope])
