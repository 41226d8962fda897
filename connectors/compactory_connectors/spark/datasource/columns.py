"""The columns of a DataFrame: the fields of values, or of raw records. Pure."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from compactory.errors import ConfigError
from compactory.nearest import nearest

from ..typed.conversion import converter_of
from ..typed.typed_rows import ERROR, OPERATION

__all__ = ["RAW", "RECORD", "checked_fields"]

RAW: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
    ]
)
"""The columns of raw records."""

RECORD: Final = StructType(
    [
        StructField("_key", StringType()),
        StructField("_value", BinaryType()),
        StructField(OPERATION, StringType()),
        StructField("_topic", StringType()),
        StructField("_partition", IntegerType()),
        StructField("_offset", LongType()),
        StructField("_timestamp", TimestampType()),
        StructField(ERROR, StringType()),
    ]
)
"""The columns of a typed row that are the record's own."""


def checked_fields(schema: StructType, *, raw: bool) -> StructType:
    """Return the fields of values that a schema asks for.

    Raises ConfigError with all columns that do not exist, or not in this type.
    """
    own = {column.name: column.dataType for column in (RAW if raw else RECORD).fields}
    problems: list[str] = []
    fields: list[StructField] = []
    for column in schema.fields:
        name, kind = column.name, column.dataType.simpleString()
        if not raw and not name.startswith("_"):
            fields.append(column)
        elif name not in own:
            problems.append(f"column {name!r}: a record has no such column{nearest(name, own)}")
        elif kind != own[name].simpleString():
            problems.append(f"column {name!r} is {own[name].simpleString()}, not {kind}")
    for field in fields:
        try:
            converter_of(field.name, field.dataType)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError(problems)
    return StructType(fields)
