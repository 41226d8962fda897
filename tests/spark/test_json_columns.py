"""Values as columns without Spark: a block at a time must give what one by one gives."""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_type

from compactory.errors import ConfigError
from compactory.read.digest import DirectoryDigest, RangeDigest, range_of, record_digest
from compactory_connectors.kafka.partitioner import partition_of
from compactory_connectors.spark.digests import digest_of, sums_of
from compactory_connectors.spark.export.manifest import Counts, Export, ExportFile, Manifest, Place, read_manifest
from compactory_connectors.spark.export.rows import Tally
from compactory_connectors.spark.topic.partition_homes import strays
from compactory_connectors.spark.typed.casting import cast
from compactory_connectors.spark.typed.json_columns import JsonReader
from compactory_connectors.spark.typed.json_types import merged, settled, spelt

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "2024-01-01", "2024-01-01 10:00:00", "2024-01-01T10:00:00Z", "NaN", "🪲", 'a"b\\'])
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
     b'{"a":1e400}', b'{"a":"\xff"}', b'{"a":"\\ud800"}', b'{"a":1,"a":2}', b' {"a":1}\n', b'{"a":\n1}',
     b'{"a":"\n"}', b'{"a":01}',
     b'{"a":1,}', b'{"a":', b'{"b":1}}', b'{"a":1.0}', b'{"a":-0}', b'{"a":18446744073709551615}', b"\xef\xbb\xbf{}"]
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(st.lists(WRITTEN | RAW, min_size=1, max_size=6), st.booleans())
def test_a_block_is_read_as_its_values_are(values: list[bytes], known: bool) -> None:
    reader = JsonReader(active="on")
    fields: dict[str, Any] = {}
    if known:
        for value in values:
            fields = merged(fields, JsonReader().parse([value], {}).found)
    one_by_one = reader._each(values, fields)
    block = reader._block(values, fields)

    if block is not None:
        fitting = {name: settled(kind) for name, kind in merged(fields, block.found).items()}
        assert fitting == {name: settled(kind) for name, kind in merged(fields, one_by_one.found).items()}
        assert (block.errors, block.deleted) == (one_by_one.errors, one_by_one.deleted)
        for name in fields:
            if settled(fields[name]) == fitting[name]:
                assert block.columns[name].equals(one_by_one.columns[name]), name


def test_columns_of_what_was_found_hold_every_value() -> None:
    values = [b'{"a": 1, "n": {"x": [1]}}', b'{"a": 2.5, "n": {"y": "t", "x": []}}', b'{"a": null, "n": null, "b": {}}']
    found = JsonReader().parse(values, {}).found

    parsed = JsonReader().parse(values, found)

    assert {name: spelt(from_arrow_type(settled(kind))) for name, kind in found.items()} == {
        "a": "double", "n": "struct<`x`:array<bigint>,`y`:string>", "b": "string",
    }  # fmt: skip
    assert parsed.columns["a"].to_pylist() == [1.0, 2.5, None]
    assert parsed.columns["n"].to_pylist() == [{"x": [1], "y": None}, {"x": [], "y": "t"}, None]
    assert parsed.columns["b"].to_pylist() == [None, None, "{}"]


def test_lists_that_are_null_or_do_not_fit_have_a_column_too() -> None:
    """Spark's ints are not JSON's: each value is then cast by itself."""
    values = [b'{"n":[1]}', b'{"n":null}', b"{}", b'{"n":["a",null]}', b'{"n":5}', b'{"n":[3000000000]}']
    read = JsonReader(fixed=True).parse(values, {"n": pa.list_(pa.int64())})
    column, unfit = cast(read.columns["n"], pa.list_(pa.int32()), base64=False)
    assert column.to_pylist() == [[1], None, None, None, None, None]
    assert [*read.errors, *unfit] == [3, 4, 5]
    deep = pa.array([[[1], None], None], pa.list_(pa.list_(pa.int64())))
    assert cast(deep, pa.list_(pa.list_(pa.int32())), base64=False)[0].to_pylist() == [[[1], None], None]


def test_what_does_not_fit_within_a_value_is_told() -> None:
    values = [b'{"s":{"x":1}}', b'{"s":{"x":"a"}}', b'{"s":{"x":null,"y":1}}', b'{"s":{"x":2.5}}']
    read = JsonReader(fixed=True).parse(values, {"s": pa.struct([("x", pa.int64())])})
    assert read.columns["s"].to_pylist() == [{"x": 1}, None, {"x": None}, None]
    assert read.errors == dict.fromkeys((1, 3), "field 's' is not of type struct<`x`:bigint>")


def test_a_dotted_active_field_is_found_as_stores_find_it() -> None:
    values = [b'{"a": {"on": false}}', b'{"a.on": true, "a": {"on": false}}', b'{"a": 1}']
    assert JsonReader(active="a.on").parse(values, {}).deleted == {0}


def test_a_value_of_too_many_levels_ends_nothing() -> None:
    """Stores read up to 1,024 levels: one such value must not end every export of its topic."""
    deep = b"[" * 600 + b"]" * 600
    values = [b'{"a": 1, "on": true}', b'{"a": ' + deep + b"}", b'{"on": false, "a": ' + deep + b"}"]
    for some in (values, [value + b" " for value in values]):
        reader = JsonReader(active="on")
        found = reader.parse(some, {}).found
        parsed = reader.parse(some, found)
        assert found["a"] == pa.int64()
        assert parsed.columns["a"].to_pylist() == [1, None, None]
        assert parsed.errors == {1: "objects and lists are within each other in more than 32 levels"}
        assert parsed.deleted == {2}


def test_objects_whose_names_spark_can_not_tell_apart_are_text() -> None:
    values = [b'{"a": {"id": 1}, "b": [{"": 1}]}', b'{"a": {"ID": 2, "x": {"y": []}}, "b": []}']
    reader = JsonReader()
    found = reader.parse(values, {}).found
    parsed = reader.parse(values, found)
    assert {name: spelt(from_arrow_type(settled(kind))) for name, kind in found.items()} == {
        "a": "string",
        "b": "array<string>",
    }
    assert parsed.columns["a"].to_pylist() == ['{"id":1}', '{"ID":2,"x":{"y":[]}}']
    assert parsed.columns["b"].to_pylist() == [['{"":1}'], []]


def test_homes_of_keys(seeded: random.Random) -> None:
    keys = [seeded.randbytes(seeded.randrange(12)) for _ in range(2000)]
    column = pa.array(keys, pa.binary())
    for partition in range(5):
        java = sum(partition_of(key, 5) != partition for key in keys)
        native = sum(zlib.crc32(key) % 5 != partition for key in keys)
        assert strays(column, partition, 5) == (java, native)
        assert strays(column[500:510], partition, 1) == (0, 0)


def test_sums_of_batches_are_the_digest_of_all(seeded: random.Random) -> None:
    records = {seeded.randbytes(seeded.randrange(1, 9)): seeded.randbytes(seeded.randrange(40)) for _ in range(3000)}
    expected = DirectoryDigest()
    for key, value in records.items():
        expected.add(range_of(key), RangeDigest.of([record_digest(key, value)]))
    keys, values = list(records), list(records.values())
    parts = [Tally(sums=sums_of(keys[at : at + 700], values[at : at + 700])) for at in range(0, len(keys), 700)]

    assert digest_of(sum(parts, Tally()).sums).ranges == expected.ranges


def test_a_manifest_is_read_as_it_was_written() -> None:
    places = tuple(Place(0, offset, "bad") for offset in range(2))
    manifest = Manifest(
        export=Export.CHANGES, directory="d", topic="t", topic_id="id", key=None, active="on", envelope="none",
        captured_ms=1, starts={0: 1, 10: 2}, ends={0: 3, 10: 4}, format="csv", columns={"a": "bigint"},
        counts=Counts(rows=2, bad=1), bad_records=places, files=(ExportFile(name="part", bytes=3),),
        digest=DirectoryDigest([RangeDigest(1, 1 << 63, 2), *[RangeDigest()] * 255]),
    )  # fmt: skip
    assert read_manifest(manifest.to_json(), "here") == manifest
    for content in (b"", b"{}", b"[]", manifest.to_json()[:-40], manifest.to_json().replace(b'"rows"', b'"rwos"')):
        with pytest.raises(ConfigError, match="here is no manifest"):
            read_manifest(content, "here")
    with pytest.raises(ConfigError, match="by another version"):
        read_manifest(manifest.to_json().replace(b'"version": 1', b'"version": 2', 1), "here")
