"""Explains why no record of a directory is usable, and which fields no entry has. Pure. Names fields, never values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from typing import Any

from compactory.codec.decoding import Document, decode_json, decoder, document_reader, field_reader
from compactory.codec.encoding import error_summary
from compactory.directory import Directory
from compactory.records import QuarantinedRecord
from compactory.table.table import Table

__all__ = ["missing_field_warnings", "unusable_reason"]

_SAMPLE = 100  # records
_MAX_FIELDS = 10  # in a message
_VALUE_FREE = (
    "key field",
    "index field",
    "the value",
    "the record",
    "'payload'",
    "'after'",
    "Object missing",
    "Expected",
)  # texts of DecodeError that begin so quote no value
_ENVELOPES = {"connect": {"schema", "payload"}, "debezium": {"before", "after", "op"}}


def unusable_reason(table: Table) -> str | None:
    """Return why no record is usable; None if one is, or if there are no records. For any thread."""
    if not table.has_only_bad_records:
        return None
    directory, bad_records = table.directory, list(islice(table.quarantine, _SAMPLE))
    fields = _fields(_documents(directory, bad_records))
    reasons = Counter(_reason(directory, bad, fields) for bad in bad_records)
    [(reason, count)] = reasons.most_common(1) or [("none was kept", 0)]
    share = "in all of them" if len(reasons) == 1 else f"in {count} of {len(bad_records)} that were looked at"
    text = f"0 of {table.quarantine.outstanding:,} records usable: {reason} {share}{_list_fields(fields)}"
    envelope = next((name for name, names in _ENVELOPES.items() if names <= set(fields)), None)
    if envelope is not None and directory.envelope == "none":
        return f'{text}; set envelope="{envelope}"'
    return text + _suggestion([directory.key] if directory.key else [], fields)


def missing_field_warnings(table: Table) -> list[str]:
    """Return a warning for each index, and for an active field, for which no entry has a value."""
    directory, storage = table.directory, table.directory_storage
    if table.is_loading or not (directory.indexes or directory.active) or not len(storage.entries):
        return []
    reading = storage.reading()
    documents = [table.document_of(packed) for _, packed in islice(reading.pairs(), _SAMPLE)]
    fields = _fields(documents)
    warnings = []
    for index in directory.indexes:
        if next(iter(reading.terms(index.name)), None) is None:
            missing = _missing(index.fields, documents) or index.fields
            warnings.append(f"index {index.name!r} finds nothing: no entry has a value in {_names(missing, fields)}")
    if directory.active and _missing([directory.active], documents):
        warnings.append(f"no entry counts as deleted: none has a value in {_names([directory.active], fields)}")
    return warnings


def _reason(directory: Directory[Any], bad: QuarantinedRecord, fields: Sequence[str]) -> str:
    kind, _, text = bad.error.partition(": ")
    if text.startswith("the value is not JSON"):
        return "the value is not JSON"
    if kind == "UnicodeDecodeError":
        return "key or value is not UTF-8 text"
    if kind == "DecodeError" and text.startswith(_VALUE_FREE):
        problem = text.partition("; ")[0]
        key_root = (directory.key or "").partition(".")[0]
        return problem if key_root in fields else problem.replace(" missing or null", " missing")
    reason = f"{kind} of {getattr(directory.decode, '__name__', 'decode')}"
    if hasattr(directory.decode, "model_validate_json"):
        try:
            decoder(directory)(bad.value or b"")
        except Exception as error:  # noqa: BLE001 (the same one as when the record was applied)
            reason += f" ({error_summary(error)})"
    return reason


def _documents(directory: Directory[Any], records: Iterable[QuarantinedRecord]) -> Iterator[Document]:
    """Yield the documents of the records that have one, inside the envelope or outside."""
    read_document = document_reader(directory.envelope)
    for record in records:
        for read in (read_document, decode_json):
            with suppress(Exception):
                document = read(record.value or b"")
                if isinstance(document, dict):
                    yield document
                    break


def _fields(documents: Iterable[Document]) -> list[str]:
    return [name for name, _ in Counter(name for document in documents for name in document).most_common()]


def _missing(fields: Iterable[str], documents: Sequence[Document]) -> list[str]:
    return [field for field in fields if all(value is None for value in map(field_reader(field), documents))]


def _names(missing: Sequence[str], fields: Sequence[str]) -> str:
    return " and ".join(map(repr, missing)) + _list_fields(fields) + _suggestion(missing, fields)


def _list_fields(fields: Sequence[str]) -> str:
    if not fields:
        return ""
    names = ", ".join(name[:60] for name in fields[:_MAX_FIELDS])
    return f"; fields seen: {names}" + (", …" if len(fields) > _MAX_FIELDS else "")


def _suggestion(missing: Iterable[str], fields: Sequence[str]) -> str:
    """Return a hint if a missing field is nearly one that exists."""
    by_lower = {name.lower(): name for name in reversed(fields)}
    for field in missing:
        if field not in fields and (matches := get_close_matches(field.lower(), by_lower, n=1, cutoff=0.75)):
            return f"; did you mean {by_lower[matches[0]]!r}?"
    return ""
