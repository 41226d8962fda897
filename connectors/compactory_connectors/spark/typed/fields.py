"""Which columns the fields of values make: given ones, or those of a sample first, then of what is found on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from compactory.directory import Directory
from compactory.errors import ConfigError
from compactory.kafka.client import Kafka

from ..identifier import quoted
from ..topic.extent import Extent, Span
from ..topic.reading import Reading, read_span
from .json_columns import Fields, JsonReader
from .json_types import fields_of, merged

__all__ = ["arrow_schema", "chosen", "columns_in", "columns_of", "given", "in_json", "infer", "sample", "widened"]

_SAMPLED: Final = 2000  # last offsets of a partition; what other records have in addition is found when they are read
_MOST: Final = 2000  # fields, those within others included; objects whose field names are data have more
_AVRO: Final = b"\0"  # Confluent's wire format begins with it, a JSON object never does


def given(text: str) -> t.StructType:
    """The columns of ``--columns``. Raises ConfigError."""
    if not text.strip():
        raise ConfigError("--columns is empty: name columns, or leave it out")
    try:
        return columns_in(text)
    except PySparkException as error:
        said = str(error).strip().partition("\n")[0]
        raise ConfigError(f"--columns {text!r} is no list such as 'id bigint, name string': {said}") from error


def columns_of(types: Mapping[str, str]) -> t.StructType:
    """Columns by their names and types in Spark's words."""
    return columns_in(", ".join(f"{quoted(name)} {kind}" for name, kind in types.items())) if types else t.StructType()


def columns_in(text: str) -> t.StructType:
    """Columns in Spark's words, as ``id bigint, price decimal(10,2)``; needs Spark's session."""
    found = t.StructType.fromDDL(text)
    assert isinstance(found, t.StructType)  # text of one type alone would be another
    return found


def arrow_schema(columns: t.StructType) -> pa.Schema:
    """The schema of the batches that Spark expects for these columns."""
    return to_arrow_schema(columns, timezone="UTC")


def in_json(columns: Iterable[t.StructField]) -> dict[str, pa.DataType]:
    """The JSON types of these columns: values are read as these, then cast. Raises ConfigError."""
    return {column.name: _in_json(column.name, column.dataType) for column in columns}


def _in_json(name: str, kind: t.DataType) -> pa.DataType:
    match kind:
        case t.BooleanType():
            return pa.bool_()
        case t.IntegralType():
            return pa.int64()
        case t.FloatType() | t.DoubleType():
            return pa.float64()
        case t.StringType() | t.DecimalType() | t.DateType() | t.TimestampType() | t.TimestampNTZType():
            return pa.string()  # of a decimal as well: where the value has it as text it keeps all of its digits
        case t.ArrayType():
            return pa.list_(_in_json(name, kind.elementType))
        case t.StructType():
            return pa.struct([(item.name, _in_json(name, item.dataType)) for item in kind.fields])
    raise ConfigError(f"column {name!r}: JSON has nothing like {kind.simpleString()}; take string")


def sample(kafka: Kafka, extent: Extent, directory: Directory[Any]) -> Fields:
    """The fields of some of the newest values. Raises ConfigError where they are no JSON at all."""
    values = [*chain.from_iterable(_values(kafka, extent.topic, extent.tail(_SAMPLED)))]
    _check(values, extent.topic)
    return JsonReader(directory.envelope, directory.active).parse(values, {}).found


def infer(kafka: Kafka, extent: Extent, directory: Directory[Any]) -> Fields:
    """The fields of all values, each of the type that holds every value of it. Raises ConfigError as `sample` does."""
    reader = JsonReader(directory.envelope, directory.active)
    batches = _values(kafka, extent.topic, extent.whole)
    first: list[bytes] = []
    while len(first) < _SAMPLED and (values := next(batches, None)) is not None:
        first += values
    _check(first, extent.topic)
    fields: Fields = {}
    for values in chain([first], batches):
        fields = widened(fields, reader.parse(values, fields).found)
    return fields


def _values(kafka: Kafka, topic: str, spans: Sequence[Span]) -> Iterator[list[bytes]]:
    reading = Reading(properties=kafka.properties(), topic=topic, spans=spans)
    for batch in chain.from_iterable(read_span(reading, span) for span in spans):
        yield batch.column("value").drop_null().to_pylist()


def _check(values: Sequence[bytes], topic: str) -> None:
    if values and all(value[:1] == _AVRO for value in values):
        raise ConfigError(
            f"values of topic {topic!r} are in the wire format of a schema registry (Avro, Protobuf), and JSON is"
            " expected; set the value converter of its connector to JSON, or read the topic with Spark's own from_avro"
        )


def widened(fields: Fields, found: Fields) -> Fields:
    """Fields that hold both; new ones come last, by name, so that the order does not depend on who found them first."""
    new = {name: found[name] for name in sorted(found) if name not in fields}
    return merged(fields, {**{name: kind for name, kind in found.items() if name in fields}, **new})


def chosen(fields: Fields) -> tuple[dict[str, pa.DataType], tuple[str, ...]]:
    """The fields that become columns, and those that can't.

    Spark takes names that differ in case alone for one; names that begin with ``_`` are the record's own. Raises
    ConfigError for more columns than files should have.
    """
    kept: dict[str, pa.DataType] = {}
    taken: set[str] = set()
    for name, kind in fields.items():
        if name and not name.startswith("_") and name.lower() not in taken:
            kept[name] = kind
            taken.add(name.lower())
    if (wide := sum(map(_width, kept.values()))) > _MOST:
        raise ConfigError(
            f"the values have {wide:,} different fields; name those that you want, with --columns of an export or"
            " .schema() of a DataFrame"
        )
    return kept, tuple(name for name in fields if name not in kept)


def _width(kind: pa.DataType) -> int:
    """How many fields it makes."""
    if pa.types.is_list(kind):
        return _width(kind.value_type)
    return sum(map(_width, fields_of(kind).values())) if pa.types.is_struct(kind) and kind.num_fields else 1
