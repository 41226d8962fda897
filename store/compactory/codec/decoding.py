"""Bytes to values: JSON, envelopes, the user's types, and the fields that keys and indexes are made of. Pure.

Every function raises DecodeError (or whatever the user's own callable raises) for a value that is not what the
directory says; the table turns that into a bad record.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Never, TypeVar, cast, get_origin

import msgspec
import orjson

from compactory.directory import Directory, Envelope, Unwrap
from compactory.errors import ConfigError, DecodeError

__all__ = [
    "Document",
    "Term",
    "check_objects",
    "check_texts",
    "column",
    "decoder",
    "document",
    "frozen",
    "is_json_type",
    "json_schema",
    "key_bytes",
    "key_text",
    "key_texts",
    "path",
    "term",
    "term_values",
]

T = TypeVar("T")
Document = dict[str, Any]
Term = Any  # a hashable stand-in for the indexed value or values

_VALUE = re.compile("value .*(?= - at `)", re.DOTALL)  # of an enum's field: errors must not have it


def decoder(directory: Directory[T], *, checked: bool = False) -> Callable[[Any], T]:
    """Return the function that turns a record's value into what a lookup answers; ``checked``: one that was read well.

    Of a checked value it need not be asked again whether it is an object. Where the directory ``decodes_entries`` the
    function takes an `Entry`.
    """
    if checked and directory.decode is dict and directory.envelope == "none":
        return cast("Callable[[bytes], T]", orjson.loads)
    inner = _plain_decoder(directory.decode)
    if directory.envelope == "none":
        return cast("Callable[[bytes], T]", inner)
    unwrap, entries = document(directory.envelope), directory.decodes_entries

    def decode(given: Any) -> Any:
        payload = unwrap(given.value if entries else given)
        if payload is None:
            raise DecodeError(f"the {directory.envelope} envelope holds a deletion, not a value")
        if directory.decode is dict:
            return payload
        return inner(given._replace(value=orjson.dumps(payload)) if entries else orjson.dumps(payload))

    return decode


def is_json_type(decode: Any) -> bool:
    """Whether msgspec reads this type; else it is a callable that takes bytes."""
    if not isinstance(decode, type):
        return get_origin(decode) is not None
    marks = ("__dataclass_fields__", "__attrs_attrs__", "__total__")  # the last one is a TypedDict's
    return issubclass(decode, msgspec.Struct | list | tuple | set | frozenset) or any(hasattr(decode, m) for m in marks)


def json_schema(decode: Any) -> str:
    """Return the JSON Schema of a type, which tells its versions apart; nothing for a callable, which has none."""
    with suppress(Exception):  # of types that JSON Schema can't describe
        if hasattr(decode, "__pydantic_validator__"):
            from pydantic import TypeAdapter

            return repr(TypeAdapter(decode).json_schema())
        if is_json_type(decode):
            return repr(msgspec.json.schema(decode))
    return ""


def frozen(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a decoder whose JSON can't be changed: objects as mapping proxies, lists as tuples."""

    def freeze(value: Any) -> Any:
        if type(value) is dict:
            return MappingProxyType({name: freeze(item) for name, item in value.items()})
        return tuple(map(freeze, value)) if type(value) is list else value

    return lambda value: freeze(decode(value))


def document(envelope: Envelope | Unwrap) -> Callable[[bytes], Document | None]:
    """Return the function that reads the JSON object in a value; its answer is None where the envelope says deleted."""
    if callable(envelope):
        return lambda value: _payload("what envelope made of the value", envelope(value))
    if envelope == "connect":
        return _connect
    if envelope == "debezium":
        return _debezium
    return _object


class _AnyObject(msgspec.Struct):
    """A JSON object with any fields: to read one checks the value and builds nothing."""


_read_any_object = msgspec.json.Decoder(_AnyObject).decode


def check_objects(values: list[bytes]) -> None:
    """Raise an error unless each value is a JSON object: a third of what reading them costs.

    One thing passes that a reader refuses: a number beyond the range of a double, such as 1e400.
    """
    check_texts(values)
    deque(map(_read_any_object, values), maxlen=0)


def check_texts(texts: Iterable[bytes]) -> None:
    """Raise UnicodeDecodeError unless each text is UTF-8. Looks at all of them at once: a NUL ends any sequence."""
    joined = b"\0".join(texts)
    if not joined.isascii():
        joined.decode()


def path(field: str) -> Callable[[Document], Any]:
    """Return the function that reads ``"a.b"`` out of a document; None where it is missing.

    A field whose own name holds the dots is found first.
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


def key_bytes(text: str) -> bytes:
    """Return what a text is looked up by; half a surrogate pair is in no topic, as keys have to be UTF-8."""
    return text.encode(errors="surrogatepass")


def key_text(field: str, value: Any) -> bytes:
    """Return the lookup key that a field's value makes: text as it is, a whole number in decimal."""
    if type(value) is str:
        return value.encode()
    if type(value) is int:
        return b"%d" % value
    kind = "missing or null" if value is None else type(value).__name__
    raise DecodeError(f"key field {field!r} is {kind}; text or a whole number is needed")


def column(field: str, docs: Sequence[Document]) -> list[Any]:
    """Return `path` of many documents."""
    if "." not in field:
        return [doc.get(field) for doc in docs]
    return list(map(path(field), docs))


def key_texts(field: str, docs: Sequence[Document]) -> list[bytes]:
    """Return `key_text` of many documents."""
    values = column(field, docs)
    if set(map(type, values)) == {str}:
        return list(map(str.encode, values))
    return [key_text(field, value) for value in values]


def term(fields: Sequence[str], values: Sequence[Any]) -> Term | None:
    """Return what an index files an entry under; None where a value is null or missing.

    Booleans are kept apart from 0 and 1, which Python takes for equal.
    """
    parts = [_scalar(field, value) for field, value in zip(fields, values, strict=True)]
    if None in parts:
        return None
    return parts[0] if len(parts) == 1 else tuple(parts)


def term_values(fields: Sequence[str], filed: Term) -> tuple[Any, ...]:
    """Return the values that a term stands for: the inverse of `term`."""
    parts = (filed,) if len(fields) == 1 else filed
    return tuple(part[1] if isinstance(part, tuple) else part for part in parts)


def _scalar(field: str, value: Any) -> Any:
    if isinstance(value, bool):
        return ("bool", value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise DecodeError(f"index field {field!r} holds {type(value).__name__}; text, numbers and booleans can be indexed")


def _plain_decoder(decode: Any) -> Callable[[bytes], Any]:
    if decode is dict:
        return _object
    if decode is bytes:
        return bytes
    if decode is str:
        return bytes.decode
    if hasattr(decode, "model_validate_json"):
        return cast("Callable[[bytes], Any]", decode.model_validate_json)
    if hasattr(decode, "__pydantic_validator__"):
        from pydantic import TypeAdapter

        return TypeAdapter(decode).validate_json
    if is_json_type(decode):
        return _typed_decoder(decode)
    return cast("Callable[[bytes], Any]", decode)


def _typed_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return the function that reads a type by msgspec. Raises ConfigError where it can't be."""
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
            raise DecodeError(_VALUE.sub("value", str(error))) from None
        except msgspec.DecodeError as error:
            raise DecodeError(f"the value is not JSON: {error}") from None

    return read


def _refuse(kind: Any, _value: object) -> Never:
    """Raise an error for a class within a type that msgspec reads: it knows the class by name only."""
    raise TypeError(
        f"Expected a type that msgspec reads, got {kind.__name__}; take pydantic's TypeAdapter(…).validate_json"
    )


def _object(value: bytes) -> Document:
    found = orjson.loads(value)
    if type(found) is not dict:
        raise DecodeError(f"the value is JSON of type {type(found).__name__}; an object is needed")
    return found


def _connect(value: bytes) -> Document | None:
    found = _object(value)
    if "payload" not in found:
        raise DecodeError("the value has no 'payload', so it is not in a Connect envelope (schemas.enable=true)")
    return _payload("payload", found["payload"])


def _debezium(value: bytes) -> Document | None:
    found = _object(value)
    if "payload" in found and "schema" in found:
        found = _payload("payload", found["payload"]) or {"op": "d"}
    if found.get("op") == "d":
        return None
    if "after" not in found:
        raise DecodeError("the value has no 'after', so it is not a Debezium change event")
    return _payload("after", found["after"])


def _payload(name: str, payload: Any) -> Document | None:
    if payload is not None and type(payload) is not dict:
        raise DecodeError(f"{name!r} is {type(payload).__name__}; an object or null is needed")
    return payload
