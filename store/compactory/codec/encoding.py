"""Values to bytes: the inverse of `decoding`, and the rules that make a record usable by every reader. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
import orjson

from compactory.codec.decoding import decoder, document, is_json_type, key_text, path, term
from compactory.directory import Directory, Envelope
from compactory.errors import ConfigError, DecodeError, WriteRefused
from compactory.records import Entry

__all__ = ["Encoding", "difference", "encoded", "json_bytes", "reason"]

T = TypeVar("T")


class Encoding(Generic[T]):
    """Makes the records of one directory, and refuses what its readers could not use. Thread-safe.

    ``encode`` turns a value into bytes; None stands for the inverse of the directory's own ``decode``, and then a value
    must also read back equal to what was given. Raises ConfigError for a directory of which there is no inverse.
    """

    def __init__(self, directory: Directory[T], encode: Callable[[Any], bytes] | None = None) -> None:
        self._directory = directory
        self._encode = _inverse(directory) if encode is None else encode
        self._own = encode is None
        self._decode, self._entries = decoder(directory), directory.decodes_entries
        self._document = document(directory.envelope)
        self._key_of = path(directory.key) if directory.key else None
        self._terms = tuple((index.fields, tuple(map(path, index.fields))) for index in directory.indexes)
        self._parses = bool(directory.key or directory.active or directory.indexes)

    def key(self, key: str) -> bytes:
        """Return the record's key. Raises WriteRefused for anything but text that is not empty."""
        if not isinstance(key, str):
            raise WriteRefused(f"keys of {self._directory.name!r} are text, not {type(key).__name__}")
        if not key:
            raise WriteRefused(f"a key of {self._directory.name!r} is empty")
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise WriteRefused(f"{key!r} is not a key: half of a surrogate pair has no UTF-8 form") from None

    def record(self, key: str, value: T) -> tuple[bytes, bytes]:
        """Return the key and the value of a record. Raises WriteRefused where a store would not read it as given."""
        name = self.key(key)
        if value is None:
            raise WriteRefused(f"{key!r}: None is not a value; delete() removes an entry")
        data = self._encoded(key, value)
        try:
            back = self._decode(Entry(key, data, self._directory.topic, -1, -1, -1) if self._entries else data)
            if self._parses:
                self._check_fields(name, data)
            differing = difference(value, back) if self._own else None
        except DecodeError as error:
            raise WriteRefused(f"{key!r}: {error}") from error
        except Exception as error:
            raise WriteRefused(f"{key!r}: the directory's decode refuses the value: {reason(error)}") from error
        if differing is not None:
            raise WriteRefused(
                f"{key!r}: {differing or 'the value'} would read back as something else (JSON has no tuples, dates or"
                " NaN, and a model may leave out or mask fields); give what JSON has, or an encode= and a decode that"
                " agree"
            )
        return name, data

    def _encoded(self, key: str, value: T) -> bytes:
        try:
            data = self._encode(value)
        except Exception as error:
            kind = type(value).__name__
            harmless = isinstance(error, DecodeError) or (self._own and type(error) is TypeError)  # orjson's
            told = str(error) if harmless else type(error).__name__  # which may not quote the value
            raise WriteRefused(f"{key!r}: {kind} can't be written here: {told}") from error
        if type(data) is not bytes:
            raise WriteRefused(f"{key!r}: encode returned {type(data).__name__}, not bytes")
        return data

    def _check_fields(self, name: bytes, data: bytes) -> None:
        """See to it that key and indexes can be read, and that the key is the one that the entry is filed under."""
        doc = self._document(data)
        if doc is None:
            return
        if self._key_of is not None and self._directory.key is not None:
            held = key_text(self._directory.key, self._key_of(doc))
            if held != name:
                raise DecodeError(f"field {self._directory.key!r} holds another key; it must hold the entry's own")
        for fields, readers in self._terms:
            term(fields, [read(doc) for read in readers])


def _inverse(directory: Directory[Any]) -> Callable[[Any], bytes]:
    decode: Any = directory.decode
    if decode is bytes or decode is str:
        return _typed(decode, bytes if decode is bytes else str.encode)
    if decode is dict or hasattr(decode, "model_dump_json"):
        return _typed(decode, _json)
    if hasattr(decode, "__pydantic_validator__"):  # a dataclass of pydantic
        from pydantic import TypeAdapter

        adapter = TypeAdapter(decode)
        return _typed(decode, lambda value: adapter.dump_json(value, by_alias=True))
    if is_json_type(decode):
        checked = isinstance(decode, type) and not hasattr(decode, "__total__")  # others by reading them back
        return _typed(decode, msgspec.json.encode) if checked else msgspec.json.encode
    raise ConfigError(
        f"directory {directory.name!r} is decoded by {getattr(decode, '__name__', decode)!r}, of which the inverse is"
        " not known: give the writer encode=, a callable that turns a value into bytes"
    )


def _typed(kind: type, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def checked(value: Any) -> bytes:
        if not isinstance(value, kind):
            raise DecodeError(f"a {kind.__name__} is needed")
        return encode(value)

    return checked


def _json(value: Any) -> bytes:
    """Return JSON of what JSON has, of a pydantic model, or of a type that msgspec knows."""
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json(by_alias=True)  # readers validate by alias
        return text.encode()
    if is_json_type(type(value)):
        return msgspec.json.encode(value)
    return json_bytes(value)


def difference(value: Any, back: Any) -> str | None:
    """Return the path of the first part that is not the same in a value that was read back; None where all is.

    The path is empty where it is the value itself. Models are compared by their fields: private attributes are never
    written. NaN is the same as NaN. Parts of a class without ``__eq__`` count as the same.
    """
    kind: Any = type(value)
    if back == value or kind.__eq__ is object.__eq__ or (value != value and back != back):
        return None
    shape, parts = _parts(value)
    shape_back, parts_back = _parts(back)
    if shape is not shape_back or parts.keys() != parts_back.keys():
        return ""
    for name, part in parts.items():
        path = difference(part, parts_back[name])
        if path is not None:
            return ".".join(filter(None, (str(name), path)))
    return None


def _parts(value: Any) -> tuple[object, Mapping[Any, Any]]:
    """Return the kind of a model, mapping, list or tuple, and its fields or items; all else is a kind of its own."""
    if hasattr(type(value), "model_fields"):
        fields = {name: value.__dict__.get(name) for name in type(value).model_fields}
        return "model", fields | (value.model_extra or {})
    if isinstance(value, Mapping):
        return Mapping, value
    for kind in (list, tuple):
        if isinstance(value, kind):
            return kind, dict(enumerate(value))
    return object(), {}


def reason(error: Exception) -> str:
    """Return why a value does not fit, without the value: pydantic's own texts show it.

    It names the fields and rules of an error of pydantic; of any other error it is the class.
    """
    errors: Any = getattr(error, "errors", None)
    if not callable(errors):
        return type(error).__name__
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['type']}" for item in errors())


def json_bytes(value: Any) -> bytes:
    """Return JSON that is to be kept: orjson's own bytes take up to ten times their length (orjson 3)."""
    return bytes(memoryview(orjson.dumps(value)))


def encoded(value: Any, envelope: Envelope) -> bytes | None:
    """Return a value as a producer of the directory's records would write it; text and bytes go as they are."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    data = orjson.Fragment(_json(value))
    wrapped = {"none": data, "connect": {"schema": None, "payload": data}, "debezium": {"op": "u", "after": data}}
    if envelope not in wrapped:
        raise ConfigError("only the bytes of a record can be put where envelope= is a callable")
    return orjson.dumps(wrapped[envelope])
