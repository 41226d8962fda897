"""Rows to files, and back: what each format needs so that nothing is lost on the way."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, StructType

from ..identifier import quoted
from .manifest import Manifest
from .rows import Shape

__all__ = ["flattened", "read", "write"]

_TIMES: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_CSV: Final = {
    "header": True,
    "quote": '"',
    "escape": '"',
    "encoding": "UTF-8",
    "ignoreLeadingWhiteSpace": False,
    "ignoreTrailingWhiteSpace": False,
    "nullValue": "",
    "emptyValue": '""',
    **_TIMES,  # nothing is null, "" an empty text
}
_WRITE: Final[dict[str, dict[str, Any]]] = {
    "csv": {**_CSV, "lineSep": "\n"},
    "json": {"ignoreNullFields": False, **_TIMES},
}
_READ: Final[dict[str, dict[str, Any]]] = {
    "csv": {
        **_CSV,
        "multiLine": True,
        "maxCharsPerColumn": -1,
        "mode": "FAILFAST",
        "nullValue": "\0",
        "emptyValue": "",  # null becomes the one, "" the other: they must not be equal
    },
    "json": {"mode": "FAILFAST", **_TIMES},
}


def write(frame: DataFrame, path: str, form: str) -> None:
    """Write rows as files of this format into a folder that may hold others."""
    flattened(frame, form).write.format(form).options(**_WRITE.get(form, {})).mode("append").save(path)


def read(spark: SparkSession, path: str, manifest: Manifest) -> DataFrame:
    """The rows of those files that the manifest names, with the columns as they were written."""
    form = manifest.format
    files = [f"{path.rstrip('/')}/{each.name}" for each in manifest.files]
    written = flattened(spark.createDataFrame([], from_arrow_schema(Shape.of(manifest).schema)), form)
    return spark.read.format(form).options(**_READ.get(form, {})).schema(written.schema).load(files)


def flattened(frame: DataFrame, form: str) -> DataFrame:
    """The columns as this format has them: of text formats binary ones as text, in CSV objects and lists as JSON."""
    if form not in _WRITE:
        return frame
    columns = []
    for item in frame.schema.fields:
        column = f.col(quoted(item.name))
        if isinstance(item.dataType, BinaryType):
            column = f.try_validate_utf8(column.cast("string"))  # null where it is none: such a record is bad anyway
        elif form == "csv" and isinstance(item.dataType, StructType | ArrayType):
            column = f.to_json(column)
        columns.append(column.alias(item.name))
    return frame.select(columns)
