"""Values as columns without Spark: a block at a time must give what one by one gives."""

from __future__ import annotations

import json
import random
import zlib
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, LongType, StructField, StructType, _parse_datatype_json_string

from compactory_connectors.kafka.partitioner import partition_of
from compactory_connectors.spark.topic.newest import newest_records
from compactory_connectors.spark.topic.partition_homes import strays
from compactory_connectors.spark.topic.reading import SCHEMA
from compactory_connectors.spark.typed.conversion import type_text
from compactory_connectors.spark.typed.inference import infer_columns
from compactory_connectors.spark.typed.values import ValueReader

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "2024-01-01", "2024-01-01 10:00:00", "2024-01-01T10:00:00Z", "NaN", "🪲", 'a"b\\', "1008"])
    | st.text(max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "X", "y", ""]), inner, max_size=2)
    ),
    max_leaves=4,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "on", "c.d"]), VALUES, max_size=3)
WRITTEN = DOCUMENTS.map(lambda document: json.dumps(document).encode())
RAW = st.sampled_from(
    [b"", b"{", b"}", b"null", b"[1]", b'{"a":1}{"b":2}', b'{"a":1} {"a":2}', b'{"a":NaN}', b'{"a":-Infinity}',
     b'{"a":1e400}', b'{"a":"\xff"}', b'{"a":"\\ud800"}', b' {"a":1}\n', b'{"a":\n1}', b'{"a":"\n"}', b'{"a":01}',
     b'{"a":1,}', b'{"a":', b'{"b":1}}', b'{"a":1.0}', b'{"a":-0}', b'{"a":18446744073709551615}', b"\xef\xbb\xbf{}"]
)  # fmt: skip
TYPES = st.sampled_from(
    ["boolean", "integer", "long", "double", "string", "date", "timestamp", "timestamp_ntz", "decimal(10,2)", "binary"]
)


def columns(**types: str) -> StructType:
    """Columns of types in Spark's JSON, which needs no session."""
    return StructType(
        [StructField(name, _parse_datatype_json_string(json.dumps(kind))) for name, kind in types.items()]
    )


@settings(max_examples=600, deadline=None)
@given(st.lists(WRITTEN | RAW, min_size=1, max_size=6), TYPES, TYPES, st.sampled_from([None, True, False]))
def test_a_block_is_read_as_its_values_are(values: list[bytes], first: str, second: str, base64: bool | None) -> None:
    reader = ValueReader(columns(a=first, b=second), active="on", base64=base64)
    block, one_by_one = reader._read_block(values), reader._read_each(values)
    if block is not None:
        assert (block.deleted, one_by_one.errors) == (one_by_one.deleted, {})
        rows = [row for row in range(len(values)) if row not in block.deleted]
        for name in ("a", "b"):
            assert block.columns[name].take(rows).equals(one_by_one.columns[name].take(rows)), name


def test_common_values_are_read_as_blocks() -> None:
    kinds = {"n": "integer", "fee": "decimal(30,20)", "at": "timestamp", "day": "date", "raw": "binary", "t": "string"}
    reader = ValueReader(columns(**kinds), active="on")
    texts = [
        b'{"n":1,"fee":12.34567890123456789,"at":"2026-03-01T10:00:00+02:00","day":"2026-03-01","raw":"AQ==","t":"x"}',
        b'{"n":2,"other":{"a":[1]},"on":false}',
    ]
    numbers = [b'{"n":1,"fee":7,"at":1500,"day":1}', b'{"n":2,"at":null}']
    found = reader._read_block(texts)
    assert found is not None
    assert found.columns["fee"][0].as_py() == Decimal("12.34567890123456789")
    assert found.columns["raw"][0].as_py() == b"\1"
    assert found.deleted == {1}
    found = reader._read_block(numbers)
    assert found is not None
    assert found.columns["at"].cast(pa.int64()).to_pylist() == [1_500_000, None]


def test_what_does_not_fit_is_an_error_of_its_row() -> None:
    inner = StructType(
        [StructField("s", StructType([StructField("x", LongType())])), StructField("n", ArrayType(LongType()))]
    )
    values = [
        b'{"s":{"x":1}}',
        b'{"s":{"x":"a"}}',
        b'{"s":{"x":null,"y":1}}',
        b'{"n":[1,2.5]}',
        b'{"n":[1,null]}',
        b"{}",
    ]
    read = ValueReader(inner).read(values)
    assert read.columns["s"].to_pylist() == [{"x": 1}, None, {"x": None}, None, None, None]
    assert read.columns["n"].to_pylist() == [None, None, None, None, [1, None], None]
    assert read.errors == {
        1: "field 's' is not of type struct<`x`:bigint>",
        3: "field 'n' is not of type array<bigint>",
    }


def test_a_dotted_active_field_is_found_as_stores_find_it() -> None:
    values = [b'{"a": {"on": false}}', b'{"a.on": true, "a": {"on": false}}', b'{"a": 1}']
    assert ValueReader(StructType(), active="a.on").read(values).deleted == {0}


def test_a_value_of_too_many_levels_ends_nothing() -> None:
    deep = b"[" * 600 + b"]" * 600
    values = [b'{"a": 1}', b'{"a": ' + deep + b"}"]
    assert ValueReader(columns(a="long")).read(values).errors == {1: "field 'a' is not of type bigint"}
    [column], _ = infer_columns([{"a": json.loads(deep)}])
    assert column.dataType.simpleString().startswith("array<")


def test_inferred_columns_hold_the_values_of_all() -> None:
    documents = [
        {"a": 1, "n": {"x": [1]}, "same": {"id": 1}, "_key": 1},
        {"a": 2.5, "n": {"y": "t", "x": []}, "same": {"ID": 2}, "A": 1},
        {"a": None, "n": None, "b": {}, "big": 1 << 70, "mixed": [1, "x"]},
    ]
    found, without_column = infer_columns(documents)
    assert {field.name: type_text(field.dataType) for field in found} == {
        "a": "double",
        "n": "struct<`x`:array<bigint>,`y`:string>",
        "same": "string",
        "b": "string",
        "big": "double",
        "mixed": "array<string>",
    }
    assert without_column == ["_key", "A"]
    with pytest.raises(ValueError, match="2,001 different fields"):
        infer_columns([{f"f{number}": number for number in range(2001)}])


def records(*rows: tuple[bytes, bytes | None, int, int, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


@pytest.mark.parametrize("memory", [1 << 30, 4_000])
def test_the_newest_records_in_any_memory(
    memory: int, seeded: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a partition the later offset is newer, between partitions the newer timestamp, then the higher one."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    batches: list[pa.RecordBatch] = []
    newest: dict[int, dict[bytes, tuple[int, int, bytes | None]]] = {0: {}, 1: {}}
    for partition in range(2):
        for first in range(0, 2000, 50):
            rows = []
            for offset in range(first, first + 50):
                key, stamp = b"k%d" % seeded.randrange(300), seeded.randrange(100)
                value = b"%d-%d" % (partition, offset) if seeded.random() < 0.9 else None
                rows.append((key, value, partition, offset, stamp))
                newest[partition][key] = (stamp, partition, value)
            batches.append(records(*rows))
    expected = {
        key: max((found[key] for found in newest.values() if key in found), key=lambda row: row[:2])[2]
        for key in newest[0] | newest[1]
    }
    found = [row for batch in newest_records(iter(batches), memory) for row in batch.to_pylist()]
    assert len(found) == len(expected)
    assert {row["key"]: row["value"] for row in found} == expected
    assert list(tmp_path.iterdir()) == []


def test_homes_of_keys(seeded: random.Random) -> None:
    keys = [seeded.randbytes(seeded.randrange(12)) for _ in range(2000)]
    column = pa.array(keys, pa.binary())
    for partition in range(5):
        java = sum(partition_of(key, 5) != partition for key in keys)
        native = sum(zlib.crc32(key) % 5 != partition for key in keys)
        assert strays(column, partition, 5) == (java, native)
        assert strays(column[500:510], partition, 1) == (0, 0)
