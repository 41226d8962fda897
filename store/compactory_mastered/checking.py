"""Decides what an operation writes: current state + operation → record, or the reason why not. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping
from typing import Any

import orjson

from compactory.codec.decoding import field_reader, lookup_key_from
from compactory.codec.encoding import RecordEncoder, json_bytes
from compactory.codec.whole_numbers import beyond_64_bits
from compactory.directory import Directory
from compactory.errors import Conflict, DecodeError, EntryMissing, PreconditionFailed, WriteRefused
from compactory_mastered.current_state import CurrentState, Held, Write
from compactory_mastered.operation import Operation, merged
from compactory_mastered.rules import WriteRules, key_matcher

__all__ = ["Checker"]

_DEEPEST = 64  # levels of nesting in a value
_LISTED = 20  # problems of one value


class Checker:
    """The rules of one directory. Owned by the writer's thread.

    ``known`` tells for each directory that is referenced whether it has a key.
    """

    def __init__(self, directory: Directory[Any], rules: WriteRules, known: Mapping[str, Container[str]]) -> None:
        self.largest = 1 << 20
        """Bytes of key and value together that the topics take."""
        self._name = directory.name
        self._rules = rules
        self._known = known
        self._encoding: RecordEncoder[Any] = RecordEncoder(directory, json_bytes)
        self._key_matches = key_matcher(rules.key_pattern) if rules.key_pattern is not None else None
        self._derived = [(name, field_reader(name)) for name in rules.key_from]
        self._references = [(name, field_reader(name), target) for name, target in rules.references.items()]
        self._schema_errors = _schema_errors(rules.schema) if rules.schema is not None else None
        self._plain = directory.decode is dict  # any JSON object reads back as it is

    def write(self, operation: Operation, state: CurrentState) -> Write:
        """Return the record that an operation writes; for the repeat of a ``post`` the one that is there already.

        Raises EntryMissing, PreconditionFailed, Conflict, WriteRefused.
        """
        key = operation.key if operation.key is not None else self._derived_key(operation)
        name = self._encoding.key(key)
        if self._key_matches is not None and operation.key is not None and not self._key_matches(key):
            raise WriteRefused(f"the key does not match key_pattern of directory {self._name!r}")
        held = state.entry(name)
        if operation.if_match is not None or operation.if_none_match is not None:
            _check_conditions(operation, key, state.tag(held) if held is not None else None)
        if held is None and operation.kind in ("patch", "delete"):
            raise EntryMissing(f"directory {self._name!r} has no entry {key!r}")
        if operation.kind == "delete":
            return Write(None, operation=operation, key=key, name=name, status="deleted")
        document = self._document(operation, held)
        data = self._encoded(key, document)
        if len(name) + len(data) > self.largest:
            raise WriteRefused(f"the entry takes {len(name) + len(data)} bytes; the topic takes {self.largest}")
        if operation.kind == "post" and held is not None:
            if held.document != document:
                raise Conflict(f"directory {self._name!r} has an entry {key!r} already, with another value; use PUT")
            return Write(data, operation=operation, key=key, name=name, status="created", there=held)
        terms = state.terms(document)
        conflicting = state.taken(name, terms)
        if conflicting:
            raise Conflict(f"another entry of directory {self._name!r} has this value of {', '.join(conflicting)}")
        if self._references:
            self._check_references(name, document, state)
        status: Any = "created" if held is None else "replaced"
        return Write(data, terms=terms, operation=operation, key=key, name=name, status=status)

    def _derived_key(self, operation: Operation) -> str:
        if not self._derived:
            raise WriteRefused(f"directory {self._name!r} derives no keys (it has no key_from): name one with PUT")
        document = _object(operation.value)
        values = [read(document) for _, read in self._derived]
        missing = [f"{name}: is missing, and the key is derived from it"
                   for (name, _), value in zip(self._derived, values, strict=True) if value is None]  # fmt: skip
        if missing:
            raise WriteRefused(missing)
        try:
            return hashlib.sha256(orjson.dumps(values)).hexdigest()[:32]
        except TypeError as error:
            raise WriteRefused("the fields of the key can't be written as JSON, or are nested too deeply") from error

    def _document(self, operation: Operation, held: Held | None) -> dict[str, Any]:
        document = _object(operation.value)
        if operation.kind == "patch":
            assert held is not None
            _check_depth(document)
            _check_exact(held)
            return _object(merged(held.document, document))
        if held is not None and self._rules.internal:  # who can't see them can't send them back
            existing = held.document
            missing = [name for name in self._rules.internal if name in existing and name not in document]
            if missing:
                _check_exact(held)
            document = document | {name: existing[name] for name in missing}
        return document

    def _encoded(self, key: str, document: dict[str, Any]) -> bytes:
        try:
            data = json_bytes(document)
        except TypeError as error:
            _check_depth(document)
            raise WriteRefused(f"{key!r}: the value can't be written as JSON") from error
        if data.count(b"{") + data.count(b"[") > _DEEPEST:  # else it can't be that deep
            _check_depth(document)
        if self._schema_errors is not None and (problems := self._schema_errors(document)):
            raise WriteRefused(problems)
        return data if self._plain else self._decodable(key, document)

    def _decodable(self, key: str, document: dict[str, Any]) -> bytes:
        try:
            return self._encoding.record(key, document)[1]
        except WriteRefused as error:
            told: Callable[..., list[Any]] | None = getattr(error.__cause__, "errors", None)  # of a pydantic model
            if told is None:
                raise
            found = told(include_url=False, include_input=False, include_context=False)
            raise WriteRefused(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in found) from error

    def _check_references(self, name: bytes, document: dict[str, Any], state: CurrentState) -> None:
        for field, read, target in self._references:
            value = read(document)
            if value is None:
                continue
            try:
                wanted = lookup_key_from(field, value)
            except DecodeError as error:
                raise WriteRefused(f"{field}: {error}") from error
            own = target == self._name
            if not (wanted == name or state.entry(wanted) if own else wanted.decode() in self._known[target]):
                raise Conflict(f"{field}: directory {target!r} has no such entry")


def _check_conditions(operation: Operation, key: str, tag: str | None) -> None:
    wanted, unwanted = operation.if_match, operation.if_none_match
    if wanted is not None and tag is None:
        raise PreconditionFailed(f"there is no entry {key!r}: this write may only change an entry (If-Match)")
    if wanted is not None and "*" not in wanted and tag not in wanted:
        raise PreconditionFailed(f"entry {key!r} was changed since it was read: read it again (If-Match)")
    if unwanted is not None and tag is not None and "*" in unwanted:
        raise PreconditionFailed(f"entry {key!r} exists already: this write may only create it (If-None-Match: *)")
    if unwanted is not None and tag is not None and tag in unwanted:
        raise PreconditionFailed(f"entry {key!r} has an ETag that this write may not replace (If-None-Match)")


def _check_exact(held: Held) -> None:
    """Raise WriteRefused if a number of the existing entry would be rounded."""
    if (number := beyond_64_bits(held.data or b"")) is not None:
        raise WriteRefused(
            f"the entry has the number {number}, which has more than 64 bits and would be rounded: replace the whole"
            " entry, and send this number as text"
        )


def _schema_errors(schema: Mapping[str, Any]) -> Callable[[Any], list[str]]:
    import jsonschema_rs

    validator = jsonschema_rs.validator_for(dict(schema), mask="the value")

    def errors(document: Any) -> list[str]:
        if validator.is_valid(document):
            return []
        found = [f"{'.'.join(map(str, error.instance_path)) or 'value'}: {error.message}"
                 for error in validator.iter_errors(document)]  # fmt: skip
        return found[:_LISTED]

    return errors


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WriteRefused("the value must be a JSON object")
    return value


def _check_depth(value: Any, levels: int = _DEEPEST) -> None:
    if isinstance(value, dict | list):
        if not levels:
            raise WriteRefused(f"the value is nested more than {_DEEPEST} levels deep")
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(part, levels - 1)
