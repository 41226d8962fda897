"""Directories to files of a lake: what ``spark.read`` gives, written by Spark's own writers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError
from compactory.nearest import nearest

from .failures import spark_failures
from .identifier import quoted
from .registration import register
from .schema import infer_schema, options_of, struct_of

__all__ = ["FORMATS", "ExportReport", "export"]

FORMATS: Final = ("parquet", "orc", "csv", "json", "avro", "delta", "iceberg", "hudi")
"""Formats by their names in Spark; others by their Java classes. Some need a package in the session."""

_RECORD: Final = "_key string, _value binary, _partition int, _offset bigint, _timestamp timestamp, _error string"
_TIMES: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_OPTIONS: Final[Mapping[str, dict[str, Any]]] = {
    # nothing is null, "" an empty text; quotes are doubled
    "csv": {"header": True, "escape": '"', "nullValue": "", "emptyValue": '""', **_TIMES},
    "json": {"ignoreNullFields": False, **_TIMES},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """The result of an export. ``bad`` rows have a key or value that can't be read, and say why in ``_error``."""

    directory: str
    path: str
    format: str
    rows: int
    bad: int
    columns: Mapping[str, str]
    """The columns with Spark's types."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def export(
    spark: SparkSession,
    directory: str | Directory[Any],
    path: str | Path,
    *,
    kafka: str | Mapping[str, str] | None = None,
    format: str = "parquet",  # noqa: A002  # Spark's name
    columns: str | StructType | None = None,
    connector: str | Path | None = None,
    partition_by: str | Sequence[str] = (),
    mode: Literal["error", "append", "overwrite"] = "error",
    max_bad: int | None = None,
    writer_options: Mapping[str, str] | None = None,
    **options: Any,
) -> ExportReport:
    """Write the newest entries of a directory to files, or into a table of a lake, and return a report.

    ``path``: a folder, or what the format takes for ``save``. ``format``: one of Spark's, or of a package in the
    session, as ``delta`` and ``iceberg``. ``columns``: fields and Spark's types; default: those of the ``connector``'s
    table, else as `infer_schema` finds them. ``partition_by``: columns whose values name the folders. ``mode``,
    ``writer_options``: as Spark's writers have them. ``options``: others of ``format("compactory")``, as ``at``,
    ``active``, ``wait``. ``kafka``: servers, or the client's properties; default: the variable ``COMPACTORY_KAFKA``.

    Raises ConfigError, Unreachable; CompactoryError if the topic was created again meanwhile, and if more than
    ``max_bad`` records can't be read, or none can: their rows were written then.
    """
    source = directory if isinstance(directory, Directory) else Directory(directory)
    partitions = [partition_by] if isinstance(partition_by, str) else [*partition_by]
    _check_format(format)
    read_options = options_of(
        kafka,
        "export",
        {
            "directory": source.name,
            "topic": source.topic,
            "active": source.active,
            "envelope": source.envelope,
            "connector": connector,
            **options,
        },
    )
    with spark_failures():
        register(spark)
        reader = spark.read.format("compactory").options(**read_options)
        fields = _fields(spark, source, columns, read_options)
        schema = StructType([*fields.fields, *struct_of(_RECORD).fields])
        _check_partitions(partitions, schema)
        rows = reader.schema(schema).load()
        rows = rows.withColumn("_value", f.when(f.col("_error").isNotNull(), f.col("_value")))
        counts = Observation(f"export_{source.name}")
        observed = rows.observe(
            counts, f.count(f.lit(1)).alias("rows"), f.count_if(f.col("_error").isNotNull()).alias("bad")
        )
        written = _as_text(observed, format)
        writer = written.write.format(format).mode(mode).partitionBy(*partitions)
        with _refused_targets(str(path), format):
            writer.options(**{**_OPTIONS.get(format, {}), **(writer_options or {})}).save(str(path))
        report = ExportReport(
            directory=source.name,
            path=str(path),
            format=format,
            rows=counts.get["rows"],
            bad=counts.get["bad"],
            columns={field.name: field.dataType.simpleString() for field in written.schema.fields},
        )
    _check_bad(report, max_bad)
    return report


@contextmanager
def _refused_targets(path: str, form: str) -> Iterator[None]:
    """Raise ConfigError where Spark refuses the folder or the format, before it reads anything."""
    try:
        yield
    except AnalysisException as error:
        condition = error.getCondition()
        if condition == "PATH_ALREADY_EXISTS":
            raise ConfigError(f"{path} exists: give another path, or overwrite it") from error
        if condition == "DATA_SOURCE_NOT_FOUND":
            raise ConfigError(
                f"format {form} needs its package in the session: --conf spark.jars.packages=…"
            ) from error
        raise


def _check_format(name: str) -> None:
    if name not in FORMATS and "." not in name:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, not {name!r}{nearest(name, FORMATS)}")


def _check_partitions(names: Sequence[str], schema: StructType) -> None:
    if unknown := [name for name in names if name not in schema.names]:
        raise ConfigError(f"partition_by: there is no column {name!r}{nearest(name, schema.names)}" for name in unknown)


def _check_bad(report: ExportReport, max_bad: int | None) -> None:
    if report.bad and report.bad == report.rows:
        raise CompactoryError(f"none of the {report.rows} records can be read: see _error of the rows in {report.path}")
    if max_bad is not None and report.bad > max_bad:
        raise CompactoryError(
            f"{report.bad} records can't be read, more than {max_bad}: see _error of the rows in {report.path}"
        )


def _fields(
    spark: SparkSession, source: Directory[Any], columns: str | StructType | None, options: Mapping[str, str]
) -> StructType:
    """Return the columns of values: the given ones, or those of the connector or the registry, or of all values."""
    if columns is not None:
        return struct_of(columns)
    if "connector" in options or options.get("valueFormat", "json") != "json":
        schema = spark.read.format("compactory").options(**options).load().schema
        return StructType([field for field in schema.fields if not field.name.startswith("_")])
    kafka = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    envelope: Any = source.envelope
    return infer_schema(spark, source.name, kafka=kafka, topic=source.topic, envelope=envelope, at=options.get("at"))


def _as_text(rows: DataFrame, name: str) -> DataFrame:
    """Return the columns as CSV has them: bytes in Base64, objects and lists as JSON."""
    if name != "csv":
        return rows
    columns = []
    for field in rows.schema.fields:
        column = f.col(quoted(field.name))
        if isinstance(field.dataType, BinaryType):
            column = f.base64(column)
        elif isinstance(field.dataType, StructType | ArrayType | MapType):
            column = f.to_json(column)
        columns.append(column.alias(field.name))
    return rows.select(columns)
