"""Rows of a DataFrame that is written to a topic or a directory: typed columns, or raw keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import orjson
import pyarrow as pa
from pyspark.sql import types as t

from compactory.errors import ConfigError, WriteRefused

from ..typed.json_objects import JsonRow, JsonRows

__all__ = ["raw_json_rows", "raw_records", "rows_to_write"]

_RAW = ("key", "value")


def rows_to_write(options: Mapping[str, str], schema: t.StructType) -> tuple[JsonRows | None, list[str]]:
    """Return the converter of typed columns, None where raw = true, and the problems of options and columns."""
    problems = [
        f"option {name} must be true or false"
        for name in ("raw", "ignoreNullFields")
        if options.get(name.lower(), "true") not in ("true", "false")
    ]
    if options.get("raw") == "true":
        return None, [*problems, *_raw_problems(schema)]
    try:
        return JsonRows.of(schema, keeps_nulls=options.get("ignorenullfields") == "false"), problems
    except ConfigError as error:
        return None, [*problems, *error.problems]


def raw_records(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield keys and values as they are. Raises WriteRefused for a null key."""
    for batch in batches:
        for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
            if key is None:
                raise WriteRefused("column key is null in a row: filter such rows out")
            yield key, value


def raw_json_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[JsonRow]:
    """Yield rows of keys in UTF-8 and JSON objects; a null value deletes its key. Raises WriteRefused for others."""
    for key, value in raw_records(batches):
        try:
            document = {} if value is None else orjson.loads(value)
            row = JsonRow(key.decode(), value is None, document)
        except ValueError as error:
            raise WriteRefused(f"a raw row is no key in UTF-8 with a JSON object: {error}") from None
        if not isinstance(document, dict):
            raise WriteRefused(f"{row.key!r}: column value must hold JSON objects")
        yield row


def _raw_problems(schema: t.StructType) -> list[str]:
    types = {column.name: column.dataType for column in schema.fields}
    problems = [f"column {name} is missing" for name in _RAW if name not in types]
    return problems + [
        f"column {name} must be of type binary: cast it"
        for name in _RAW
        if name in types and not isinstance(types[name], t.BinaryType)
    ]
