"""Rows to files, and back: what each format needs so that nothing is lost on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["write"]

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    # NULL is nothing, an empty text is ""; line ends within quotes are read with multiLine.
    "csv": {"header": True, "quote": '"', "escape": '"', "nullValue": "", "emptyValue": '""', "lineSep": "\n",
            "ignoreLeadingWhiteSpace": False, "ignoreTrailingWhiteSpace": False,
            "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "encoding": "UTF-8"},
    "json": {"ignoreNullFields": False, "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"},
}  # fmt: skip


def write(frame: DataFrame, path: str, form: str) -> None:
    """Write rows as files of this format into a folder that may hold others."""
    flat = _as_text(frame, nested=form == "csv") if form in _OPTIONS else frame
    flat.write.format(form).options(**_OPTIONS.get(form, {})).mode("append").save(path)


def _as_text(frame: DataFrame, *, nested: bool) -> DataFrame:
    """Binary columns as text (null where they are none), and where ``nested`` objects and lists as JSON."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, StructType

    columns = []
    for item in frame.schema.fields:
        column = f.col(f"`{item.name.replace('`', '``')}`")
        if isinstance(item.dataType, BinaryType):
            column = f.try_validate_utf8(column.cast("string"))
        elif nested and isinstance(item.dataType, StructType | ArrayType):
            column = f.to_json(column)
        columns.append(column.alias(item.name))
    return frame.select(columns)
