"""Adds the entries of a directory to rows: the newest entry of a key, or the one of an event's time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, DataFrameReader, Window
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from compactory.errors import ConfigError
from compactory.nearest import nearest

from .datasource.columns import RECORD
from .registration import register
from .schema import options_of, struct_of

__all__ = ["enrich"]

_FOUND: Final = "_found"
_VERSION: Final = ("_key", "_op", "_partition", "_offset", "_timestamp")
_FIRST, _LAST = "_valid_from", "_valid_to"


def enrich(
    df: DataFrame,
    directory: str,
    on: str,
    *,
    schema: str | StructType | None = None,
    as_of: str | None = None,
    kafka: str | Mapping[str, str] | None = None,
    broadcast: bool = True,
    observe: str | None = None,
    **options: str,
) -> DataFrame:
    """Return the rows of ``df``, a stream or not, with the fields of the entry whose key is in the column ``on``.

    The column ``_found`` is true for rows with an entry; the fields of others are null. The directory is read when the
    query runs: in a stream at each micro-batch, so that each one has the newest entries.

    ``schema``: the fields, as ``"acquirerId bigint, since timestamp"``; default: as `spark.read` finds them.
    ``as_of``: a column of timestamps: the entry as it was then, by the records' timestamps, as far as the topic still
    has its versions. A key that was removed by then has no entry.
    ``kafka``: the servers, or the client's properties; default: the variable ``COMPACTORY_KAFKA``.
    ``broadcast``: hold the directory in the driver and in each executor; otherwise Spark chooses the join.
    ``observe``: the name of the metrics ``rows`` and ``misses``; default: ``enrich_`` and the directory's name.
    ``options``: other options of the format, as ``topic``, ``active``, ``connector``.

    Raises ConfigError where ``df`` has no such column, or columns of the directory's names; Unreachable.
    """
    _check(df, on, as_of)
    register(df.sparkSession)
    read_options = options_of(kafka, "enrich", {**options, "directory": directory})
    reader = df.sparkSession.read.format("compactory").options(**read_options)
    entries = _entries(reader, schema, versions=as_of is not None)
    fields = [name for name in entries.columns if name not in ("_key", _FIRST, _LAST)]
    if doubled := sorted({name.lower() for name in df.columns} & {*map(str.lower, fields), "_key", _FOUND}):
        raise ConfigError(f"the rows have columns {', '.join(doubled)}, as the entries have: rename them before")
    matches = df[on].cast("string") == entries["_key"]
    if as_of is not None:
        since = df[as_of] >= entries[_FIRST]
        matches = matches & since & (entries[_LAST].isNull() | (df[as_of] < entries[_LAST]))
    joined = df.join(f.broadcast(entries) if broadcast else entries, matches, "left")
    enriched = joined.withColumn(_FOUND, f.col("_key").isNotNull()).drop("_key", _FIRST, _LAST)
    misses = f.count_if(~f.col(_FOUND)).alias("misses")
    return enriched.observe(observe or f"enrich_{directory}", f.count(f.lit(1)).alias("rows"), misses)


def _check(df: DataFrame, on: str, as_of: str | None) -> None:
    for name in (on, as_of):
        if name is not None and name not in df.columns:
            raise ConfigError(f"the rows have no column {name!r}{nearest(name, df.columns)}")
    if as_of is not None and (kind := df.schema[as_of].dataType.simpleString()) != "timestamp":
        raise ConfigError(f"column {as_of!r} is {kind}; as_of needs a timestamp")


def _entries(reader: DataFrameReader, schema: str | StructType | None, *, versions: bool) -> DataFrame:
    """Return the fields and ``_key`` of the newest entries, or of all versions with the time in which each counted."""
    if versions:
        reader = reader.option("versions", "true")
    fields = _fields_of_values(reader.load().schema) if schema is None else struct_of(schema)
    needed = [column for column in RECORD.fields if column.name in (_VERSION if versions else ("_key",))]
    added = [column for column in needed if column.name not in fields.names]
    entries = reader.schema(StructType([*fields.fields, *added])).load()
    if not versions:
        return entries
    unneeded = [column.name for column in added if column.name != "_key"]
    return _with_validity(entries).where(f.col("_op") == "put").drop(*unneeded)


def _fields_of_values(columns: StructType) -> StructType:
    """Return the fields of values. Without the column ``_error``, so a value that can't be read fails the query."""
    return StructType([column for column in columns.fields if not column.name.startswith("_")])


def _with_validity(records: DataFrame) -> DataFrame:
    """Return all records with the time of each version, and that of the next one, null for the last.

    Within a partition the versions of a key come in its order: one with an older timestamp than the version before it
    counts from that timestamp on. Versions that compaction has removed are not there; the version before them is valid
    until the next one that is.
    """
    in_log = Window.partitionBy("_key", "_partition").orderBy("_offset")
    by_time = Window.partitionBy("_key").orderBy(_FIRST, "_partition", "_offset")
    versions = records.repartition("_key")
    newest_time = f.max("_timestamp").over(in_log.rowsBetween(Window.unboundedPreceding, 0))
    return versions.withColumn(_FIRST, newest_time).withColumn(_LAST, f.lead(_FIRST).over(by_time))
