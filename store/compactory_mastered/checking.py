"""Check operations: current state + operation → record to write, or the error that refuses it. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any

import orjson

from compactory.codec.decoding import field_reader, lookup_key_from
from compactory.codec.encoding import RecordEncoder, json_bytes
from compactory.codec.whole_numbers import beyond_64_bits
from compactory.directory import Directory
from compactory.errors import Conflict, DecodeError, EntryMissing, PreconditionFailed, WriteRefused
from compactory.write.operation import Operation
from compactory_mastered.current_state import AcceptedWrite, CurrentEntry, CurrentState
from compactory_mastered.rules import WriteRules, key_matcher

__all__ = ["Checker"]

_MAX_DEPTH = 64  # levels of nesting in a value
_MAX_PROBLEMS = 20  # that are reported for one value


class Checker:
    """Checks operations by the rules of one directory. Owned by the writer's thread.

    ``referenced_keys`` has the lookup keys of each referenced directory, by the directory's name.
    """

    def __init__(
        self, directory: Directory[Any], rules: WriteRules, referenced_keys: Mapping[str, Collection[str]]
    ) -> None:
        self.max_record_bytes = 1 << 20
        """Bytes that key and value together may have."""
        self._directory = directory.name
        self._rules = rules
        self._referenced_keys = referenced_keys
        self._encoding: RecordEncoder[Any] = RecordEncoder(directory, json_bytes)
        self._key_matches = key_matcher(rules.key_pattern) if rules.key_pattern is not None else None
        self._key_fields = [(name, field_reader(name)) for name in rules.key_from]
        self._references = [(name, field_reader(name), target) for name, target in rules.references.items()]
        self._schema_errors = _schema_errors(rules.schema) if rules.schema is not None else None
        self._accepts_any_object = directory.decode is dict

    def check(self, operation: Operation, state: CurrentState) -> AcceptedWrite:
        """Return the record that an operation writes.

        Raises EntryMissing, PreconditionFailed, Conflict, WriteRefused.
        """
        key = self.key_of(operation)
        record_key = self._encoding.key(key)
        if self._key_matches is not None and operation.key is not None and not self._key_matches(key):
            raise WriteRefused(f"the key does not match key_pattern of directory {self._directory!r}")
        current = state.entry(record_key)
        if operation.if_match is not None or operation.if_none_match is not None:
            _check_conditions(operation, key, state.etag(current) if current is not None else None)
        if current is None and operation.kind in ("patch", "delete"):
            raise EntryMissing(f"directory {self._directory!r} has no entry {key!r}")
        if operation.kind == "delete":
            return AcceptedWrite(None, operation=operation, key=key, record_key=record_key, status="deleted")
        document = self._new_document(operation, current)
        data = self._encoded(key, document)
        size = len(record_key) + len(data)
        if size > self.max_record_bytes:
            raise WriteRefused(
                f"the entry has {size} bytes; its topic accepts {self.max_record_bytes}: shorten the value"
            )
        write = AcceptedWrite(data, operation=operation, key=key, record_key=record_key, status="created")
        if current is not None and operation.kind == "post":
            if current.document != document:
                raise Conflict(
                    f"directory {self._directory!r} has an entry {key!r} already, with another value; use PUT"
                )
            write.existing = current
            return write
        if current is not None:
            write.status = "replaced"
        write.unique_terms = state.unique_terms(document)
        self._check_other_entries(write, document, state)
        return write

    def key_of(self, operation: Operation) -> str:
        """Return the key of an operation, derived from its value if it has none. Raises WriteRefused."""
        if operation.key is not None:
            return operation.key
        if not self._key_fields:
            raise WriteRefused(f"directory {self._directory!r} has no key_from, so choose a key and use PUT")
        document = _object(operation.value)
        values = [read(document) for _, read in self._key_fields]
        missing = [
            f"{name}: is missing, and the key is derived from it"
            for (name, _), value in zip(self._key_fields, values, strict=True)
            if value is None
        ]
        if missing:
            raise WriteRefused(missing)
        try:
            return hashlib.sha256(orjson.dumps(values)).hexdigest()[:32]
        except TypeError as error:
            raise WriteRefused("the fields of the key can't be written as JSON, or are nested too deeply") from error

    def _new_document(self, operation: Operation, current: CurrentEntry | None) -> dict[str, Any]:
        """Return the value that the entry has after the operation."""
        document = _object(operation.value)
        if operation.kind == "patch":
            assert current is not None
            _check_depth(document)
            _check_exact(current)
            return _object(_merged(current.document, document))
        if current is not None and self._rules.internal:  # a client that does not see these fields can't send them
            existing = current.document
            missing = [name for name in self._rules.internal if name in existing and name not in document]
            if missing:
                _check_exact(current)
            document = document | {name: existing[name] for name in missing}
        return document

    def _encoded(self, key: str, document: dict[str, Any]) -> bytes:
        try:
            data = json_bytes(document)
        except TypeError as error:
            _check_depth(document)
            raise WriteRefused(f"{key!r}: the value can't be written as JSON") from error
        if data.count(b"{") + data.count(b"[") > _MAX_DEPTH:  # a cheap upper bound of the depth
            _check_depth(document)
        if self._schema_errors is not None and (problems := self._schema_errors(document)):
            raise WriteRefused(problems)
        return data if self._accepts_any_object else self._decodable(key, document)

    def _decodable(self, key: str, document: dict[str, Any]) -> bytes:
        """Return the bytes of a document that the directory's ``decode`` accepts. Raises WriteRefused."""
        try:
            return self._encoding.record(key, document)[1]
        except WriteRefused as error:
            errors_of: Callable[..., list[Any]] | None = getattr(error.__cause__, "errors", None)  # of a pydantic model
            if errors_of is None:
                raise
            field_errors = errors_of(include_url=False, include_input=False, include_context=False)
            raise WriteRefused(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in field_errors) from error

    def _check_other_entries(self, write: AcceptedWrite, document: dict[str, Any], state: CurrentState) -> None:
        """Raise Conflict if another entry has a unique value of the write, or a referenced entry does not exist."""
        conflicting = state.conflicting_fields(write.record_key, write.unique_terms)
        if conflicting:
            raise Conflict(f"another entry of directory {self._directory!r} has this value of {', '.join(conflicting)}")
        for field, read, target in self._references:
            value = read(document)
            if value is None:
                continue
            try:
                referenced = lookup_key_from(field, value)
            except DecodeError as error:
                raise WriteRefused(f"{field}: {error}") from error
            if target == self._directory:
                exists = referenced == write.record_key or state.entry(referenced) is not None
            else:
                exists = referenced.decode() in self._referenced_keys[target]
            if not exists:
                raise Conflict(f"{field}: directory {target!r} has no such entry")


def _check_conditions(operation: Operation, key: str, etag: str | None) -> None:
    """Raise PreconditionFailed unless an entry with this ETag, None for no entry, meets the conditions."""
    required, excluded = operation.if_match, operation.if_none_match
    if required is not None and etag is None:
        raise PreconditionFailed(f"there is no entry {key!r}: this write may only change an entry (If-Match)")
    if required is not None and "*" not in required and etag not in required:
        raise PreconditionFailed(f"entry {key!r} was changed since it was read: read it again (If-Match)")
    if excluded is not None and etag is not None and "*" in excluded:
        raise PreconditionFailed(f"entry {key!r} exists already: this write may only create it (If-None-Match: *)")
    if excluded is not None and etag is not None and etag in excluded:
        raise PreconditionFailed(f"entry {key!r} has an ETag that this write may not replace (If-None-Match)")


def _check_exact(entry: CurrentEntry) -> None:
    """Raise WriteRefused if a number of an existing entry would be rounded."""
    if (number := beyond_64_bits(entry.data or b"")) is not None:
        raise WriteRefused(
            f"the entry has the number {number}, which has more than 64 bits and would be rounded: replace the whole"
            " entry, and send this number as text"
        )


def _schema_errors(schema: Mapping[str, Any]) -> Callable[[Any], list[str]]:
    """Return the function that lists why a document does not match a JSON Schema."""
    import jsonschema_rs

    validator = jsonschema_rs.validator_for(dict(schema), mask="the value")

    def errors(document: Any) -> list[str]:
        if validator.is_valid(document):
            return []
        problems = (
            f"{'.'.join(map(str, error.instance_path)) or 'value'}: {error.message}"
            for error in validator.iter_errors(document)
        )
        return [*islice(problems, _MAX_PROBLEMS)]

    return errors


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WriteRefused("the value must be a JSON object")
    return value


def _check_depth(value: Any, levels: int = _MAX_DEPTH) -> None:
    if isinstance(value, dict | list):
        if not levels:
            raise WriteRefused(f"the value is nested more than {_MAX_DEPTH} levels deep")
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(part, levels - 1)


def _merged(target: Any, patch: Any) -> Any:
    """Return ``target`` with a JSON merge patch applied (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result
