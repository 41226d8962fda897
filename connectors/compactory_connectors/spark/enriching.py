"""Rows get the entry of a directory that they name: the newest one, or the one of an event's time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from compactory.errors import ConfigError
from compactory.nearest import nearest

from .datasource.columns import RECORD
from .registration import register
from .servers import servers
from .topic.frame import with_validity
from .typed.fields import columns_in

__all__ = ["enrich"]

_FOUND: Final = "_found"
_VERSION: Final = ("_key", "_op", "_partition", "_offset", "_timestamp")
_FIRST, _LAST = "_valid_from", "_valid_to"


def enrich(
    df: DataFrame,
    directory: str,
    on: str,
    *,
    schema: str | None = None,
    as_of: str | None = None,
    kafka: str | Mapping[str, str] | None = None,
    broadcast: bool = True,
    observe: str | None = None,
    **options: str,
) -> DataFrame:
    """Return the rows of ``df``, a stream or not, with the fields of the entry whose key is in the column ``on``.

    A column ``_found`` says whether there is an entry; without one its fields are null. The directory is read when the
    query runs: in a stream at each micro-batch, so that each sees the newest versions.

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
    properties = {f"kafka.{name}": value for name, value in servers(kafka, "enrich").items()}
    reader = df.sparkSession.read.format("compactory").options(**properties, **options).option("directory", directory)
    entries = _entries(reader, schema, versions=as_of is not None)
    fields = [name for name in entries.columns if name not in ("_key", _FIRST, _LAST)]
    if taken := sorted({name.lower() for name in df.columns} & {*map(str.lower, fields), "_key", _FOUND}):
        raise ConfigError(f"the rows have columns {', '.join(taken)}, as the entries have: rename them before")
    matches = df[on].cast("string") == entries["_key"]
    if as_of is not None:
        since = df[as_of] >= entries[_FIRST]
        matches = matches & since & (entries[_LAST].isNull() | (df[as_of] < entries[_LAST]))
    joined = df.join(f.broadcast(entries) if broadcast else entries, matches, "left")
    found = joined.withColumn(_FOUND, f.col("_key").isNotNull()).drop("_key", _FIRST, _LAST)
    misses = f.count_if(~f.col(_FOUND)).alias("misses")
    return found.observe(observe or f"enrich_{directory}", f.count(f.lit(1)).alias("rows"), misses)


def _check(df: DataFrame, on: str, as_of: str | None) -> None:
    for name in (on, as_of):
        if name is not None and name not in df.columns:
            raise ConfigError(f"the rows have no column {name!r}{nearest(name, df.columns)}")
    if as_of is not None and (kind := df.schema[as_of].dataType.simpleString()) != "timestamp":
        raise ConfigError(f"column {as_of!r} is {kind}; as_of needs a timestamp")


def _entries(reader: DataFrameReader, schema: str | None, *, versions: bool) -> DataFrame:
    """The newest entries, or all of their versions between the times in which they counted: fields and ``_key``."""
    if versions:
        reader = reader.option("versions", "true")
    fields = _found(reader.load().schema) if schema is None else columns_in(schema)
    needed = [column for column in RECORD.fields if column.name in (_VERSION if versions else ("_key",))]
    added = [column for column in needed if column.name not in fields.names]
    read = reader.schema(StructType([*fields.fields, *added])).load()
    drop = [column.name for column in added if column.name != "_key"]
    if not versions:
        return read
    valid = with_validity(read, _FIRST, _LAST, time="_timestamp", prefix="_")
    return valid.where(f.col("_op") == "put").drop(*drop)


def _found(columns: StructType) -> StructType:
    """The fields of values. Without the column ``_error``, so a value that can't be read fails the query."""
    return StructType([column for column in columns.fields if not column.name.startswith("_")])
