"""JSON to dataclasses, nested ones included. Pure.

Scalars stay what JSON has. For dates, enums and checked fields there are pydantic and msgspec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from compactory.errors import ConfigError, DecodeError

__all__ = ["dataclass_reader"]

Read = Callable[[Any], Any]
_COLLECTIONS: dict[Any, Callable[..., Any]] = {
    list: list, Sequence: list, tuple: tuple, set: set, frozenset: frozenset
}  # fmt: skip
_MAPPINGS = (dict, Mapping)


def dataclass_reader(kind: type) -> Read:
    """Return the function that makes an instance of a JSON object; it raises DecodeError.

    Fields that the class does not know are left out, so that a new column does not make every record bad. Raises
    ConfigError for a class whose annotations can't be resolved, or don't tell which class a nested value is of.
    """
    return _of_class(kind, {})


def _of_class(kind: type, known: dict[type, Read]) -> Read:
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"decode: the annotations of {kind.__name__} need {error.name!r} at its module level"
        ) from None
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    missing = dataclasses.MISSING
    needed = [name for name, field in fields.items() if field.default is missing and field.default_factory is missing]
    nested: dict[str, Read] = {}

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise DecodeError(f"{kind.__name__} is made of an object, not of {type(value).__name__}")
        given = {name: item for name, item in value.items() if name in fields}
        for name, convert in nested.items():
            if name in given:
                given[name] = convert(given[name])
        try:
            return kind(**given)
        except TypeError as error:
            lacking = [name for name in needed if name not in given]
            if not lacking:
                raise
            raise DecodeError(f"field {lacking[0]!r}, which {kind.__name__} needs, is missing") from error

    known[kind] = read  # first: a class may nest itself
    for name in fields:
        if (convert := _of_hint(hints[name], known)) is not None:
            nested[name] = convert
    return read


def _of_hint(hint: Any, known: dict[type, Read]) -> Read | None:
    """Return the function that makes what an annotation says of JSON; None where it stays as it is."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return known.get(hint) or _of_class(hint, known)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _of_hint(arguments[0], known)
    parts = [_of_hint(argument, known) for argument in arguments]
    if origin in _COLLECTIONS and (len(parts) == 1 or arguments[1:] == (...,)):
        return _of_items(_COLLECTIONS[origin], parts[0])
    converting = [part for part in parts if part is not None]
    if not converting:
        return None
    if origin in (Union, UnionType) and len(converting) == 1:
        [convert] = converting
        return lambda value: convert(value) if isinstance(value, dict | list) else value
    if origin in _MAPPINGS and parts[0] is None:
        [convert] = converting
        return lambda value: {name: convert(item) for name, item in _checked(dict, value).items()}
    raise ConfigError(f"decode: {hint} does not tell how JSON becomes it; take pydantic, msgspec or a callable")


def _of_items(make: Callable[..., Any], convert: Read | None) -> Read | None:
    if convert is not None:
        return lambda value: make(map(convert, _checked(list, value)))
    return None if make is list else lambda value: make(_checked(list, value))


def _checked(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        wanted = "an object" if kind is dict else "an array"
        raise DecodeError(f"a field is {type(value).__name__}; {wanted} is needed")
    return value
