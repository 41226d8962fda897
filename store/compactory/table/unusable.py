"""Why none of a directory's records is usable, and which fields no entry has. Pure. Names fields, not values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from typing import Any

import orjson

from compactory.codec.decoding import Document, decoder, document_reader, field_reader
from compactory.directory import Directory
from compactory.records import QuarantinedRecord
from compactory.table.table import Table

__all__ = ["missing_field_warnings", "unusable_reason"]

_LOOKED_AT = 100  # records
_SHOWN = 10  # fields
_OURS = (
    "key field",
    "index field",
    "the value",
    "the record",
    "'payload'",
    "'after'",
    "Object missing",
    "Expected",
)  # texts without values
_ENVELOPES = {"connect": {"schema", "payload"}, "debezium": {"before", "after", "op"}}


def unusable_reason(table: Table) -> str | None:
    """Return why none of the records that were read is usable; None where one is, or there are none. For any thread."""
    if not table.unusable:
        return None
    directory, bad = table.directory, list(islice(table.quarantine, _LOOKED_AT))
    documents = list(_documents(directory, bad))
    seen = _fields(documents)
    reasons = Counter(_reason(directory, record, seen) for record in bad)
    [(reason, times)] = reasons.most_common(1) or [("none was kept", 0)]
    where = "in all of them" if len(reasons) == 1 else f"in {times} of {len(bad)} that were looked at"
    said = f"0 of {table.quarantine.outstanding:,} records usable: {reason} {where}{_shown(seen)}"
    envelope = next((name for name, names in _ENVELOPES.items() if names <= set(seen)), None)
    if envelope is not None and directory.envelope == "none":
        return f'{said}; set envelope="{envelope}"'
    return said + _nearest([directory.key] if directory.key else [], seen)


def missing_field_warnings(table: Table) -> list[str]:
    """Return a warning for each index, and for an active field, of which the entries have nothing."""
    directory = table.directory
    if table.filling or not (directory.indexes or directory.active) or not len(table.directory_storage.entries):
        return []
    documents = [
        table.document_of(packed) for _, packed in islice(table.directory_storage.reading().pairs(), _LOOKED_AT)
    ]
    seen = _fields(documents)
    found = []
    for index in directory.indexes:
        if next(iter(table.directory_storage.reading().terms(index.name)), None) is None:
            absent = _absent(index.fields, documents) or index.fields
            found.append(f"index {index.name!r} finds nothing: no entry has a value in {_named(absent, seen)}")
    if directory.active and _absent([directory.active], documents):
        found.append(f"no entry counts as deleted: none has a value in {_named([directory.active], seen)}")
    return found


def _reason(directory: Directory[Any], record: QuarantinedRecord, seen: Sequence[str]) -> str:
    kind, _, text = record.error.partition(": ")
    if kind == "JSONDecodeError":
        return "the value is not JSON"
    if kind == "UnicodeDecodeError":
        return "key or value is not UTF-8 text"
    if kind == "DecodeError" and text.startswith(_OURS):
        said = text.partition("; ")[0]
        root = (directory.key or "").partition(".")[0]
        return said.replace(" missing or null", " missing") if root not in seen else said
    named = getattr(directory.decode, "__name__", "decode")
    return f"{kind} of {named}{_model_problems(directory, record)}"


def _model_problems(directory: Directory[Any], record: QuarantinedRecord) -> str:
    """Return what a pydantic model misses in a value, by field."""
    if not hasattr(directory.decode, "model_validate_json"):
        return ""
    try:
        decoder(directory)(record.value or b"")
    except Exception as error:  # noqa: BLE001 (as it was when the record came)
        errors = getattr(error, "errors", list)  # of pydantic's ValidationError
        found: list[dict[str, Any]] = errors()
        named = [f"{item['loc'][0]}: {item['type']}" for item in found if item["loc"]]
        return f" ({', '.join(named[:_SHOWN])})" if named else ""
    return ""


def _documents(directory: Directory[Any], records: Iterable[QuarantinedRecord]) -> Iterator[Document]:
    unwrap = document_reader(directory.envelope)
    for record in records:
        for read in (unwrap, orjson.loads):
            with suppress(Exception):
                found = read(record.value or b"")
                if isinstance(found, dict):
                    yield found
                    break


def _fields(documents: Iterable[Document]) -> list[str]:
    """Return the fields that documents have, those that most of them have first."""
    return [name for name, _ in Counter(name for found in documents for name in found).most_common()]


def _absent(fields: Iterable[str], documents: Sequence[Document]) -> list[str]:
    return [field for field in fields if all(value is None for value in map(field_reader(field), documents))]


def _named(fields: Sequence[str], seen: Sequence[str]) -> str:
    return " and ".join(map(repr, fields)) + _shown(seen) + _nearest(fields, seen)


def _shown(seen: Sequence[str]) -> str:
    if not seen:
        return ""
    return "; fields seen: " + ", ".join(name[:60] for name in seen[:_SHOWN]) + (", …" if len(seen) > _SHOWN else "")


def _nearest(fields: Iterable[str], seen: Sequence[str]) -> str:
    """Return a hint where a field that is missing is nearly one that is there."""
    by_lower = {name.lower(): name for name in reversed(seen)}
    missing = [field.lower() for field in fields if field not in seen]
    near = [by_lower[match] for field in missing for match in get_close_matches(field, by_lower, n=1, cutoff=0.75)]
    return f"; did you mean {near[0]!r}?" if near else ""
