"""The files of an export, read as they were written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read"]

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "csv": {"header": True, "multiLine": True, "quote": '"', "escape": '"', "encoding": "UTF-8",
            "ignoreLeadingWhiteSpace": False, "ignoreTrailingWhiteSpace": False, "maxCharsPerColumn": -1},
}  # fmt: skip


def read(spark: SparkSession, path: str, manifest: Manifest) -> DataFrame:
    """Key, value and operation of the rows of those files that the manifest names; what is binary may be text."""
    form = manifest.format
    paths = [f"{path.rstrip('/')}/{each.name}" for each in manifest.files]
    if not paths:
        return spark.createDataFrame([], "_key string, _value string, _op string")
    reader = spark.read.format(form).options(**_OPTIONS.get(form, {}))
    return (reader.schema("_key string, _value string, _op string") if form == "json" else reader).load(paths)
