"""What a load changes in a topic, key by key; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory import Directory
from compactory_connectors.kafka.partitioner import partition_of
from compactory_connectors.spark.into_topic.topic_changes import Judge, Outgoing, Tally, change_of, living, unpacked
from compactory_connectors.spark.target import Change, Mode, Sample

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("made", pa.bool_()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ("problem", pa.string()),
        ("before", pa.binary()),
        ("copies", pa.list_(pa.struct([("partition", pa.int32()), ("timestamp_ms", pa.int64())]))),
        ("spared", pa.bool_()),
    ]
)
ON, OFF, OTHER = b'{"on":true}', b'{"on":false}', b'{"on":true,"n":1}'
PLAIN, SOFT = Directory("d"), Directory("d", active="on")


def row(key: bytes | None, after: Any = ..., before: bytes | None = None, **more: Any) -> tuple[Any, ...]:
    """``after`` left out: the load does not have it."""
    made = None if after is ... else True
    value = None if after is ... else after
    known = {"headers": None, "problem": None, "copies": None, "spared": None} | more
    return (key, made, value, known["headers"], known["problem"], before, *list(known.values())[2:])


def judged(judge: Judge, rows: Sequence[tuple[Any, ...]], size: int = 1000) -> tuple[Tally, list[Outgoing]]:
    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), size):
            columns = list(zip(*rows[start : start + size], strict=True))
            arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
            yield pa.record_batch(arrays, schema=SCHEMA)

    given = [batch.to_pylist()[0] for batch in judge(batches())]
    tallies = [Tally.loads(item["tally"]) for item in given if item["tally"] is not None]
    assert len(tallies) == 1
    return tallies[0], [record for item in given if item["records"] for record in unpacked(item["records"])]


def judge(mode: Mode = Mode.UPSERT, directory: Directory[Any] = SOFT, partitions: int | None = 1) -> Judge:
    return Judge(directory=directory, mode=mode, partitions=partitions)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (None, None, Change.UNCHANGED),
        (None, ON, Change.INSERT),
        (None, OFF, Change.INSERT),
        (ON, ON, Change.UNCHANGED),
        (ON, OTHER, Change.UPDATE),
        (ON, OFF, Change.DEACTIVATE),
        (ON, None, Change.DEACTIVATE),
        (OFF, ON, Change.UPDATE),
        (OFF, None, Change.UPDATE),
        (b"not JSON", None, Change.DEACTIVATE),
        (b"not JSON", ON, Change.UPDATE),
    ],
)
def test_what_becomes_of_a_key(before: bytes | None, after: bytes | None, change: Change) -> None:
    assert change_of(before, after, living(SOFT)) is change


def test_keys_that_the_load_lacks() -> None:
    rows = [row(b"a", before=ON), row(b"b", before=OFF), row(b"c", before=ON, spared=True), row(b"d", ON, ON)]
    tally, sent = judged(judge(), rows)
    assert (sent, tally.counts, tally.present) == ([], {"unchanged": 1}, 3)
    tally, sent = judged(judge(Mode.REPLACE), rows)
    assert sent == [Outgoing(b"a", None)]
    assert (tally.counts, tally.present) == ({"unchanged": 1, "deactivate": 1}, 3)
    assert tally.sampled()[Change.DEACTIVATE] == [Sample(before={"key": "a", "value": {"on": True}}, after=None)]


def test_headers_problems_and_keys_that_come_twice() -> None:
    headers = [{"name": "h", "value": b"\xff"}, {"name": "n", "value": None}]
    rows = [
        row(None, None, problem="column x: odd"),
        row(None, None, problem="column x: odd"),
        row(b"a", ON, ON),
        row(b"a", OTHER, ON),
        row(b"b", ON, headers=headers),
    ]
    for size in (1, 2, 1000):
        tally, sent = judged(judge(), rows, size)
        assert (tally.problems, tally.reasons) == (2, ["column x: odd"] * 2)
        assert (tally.collisions, tally.twice, tally.present) == (1, ["a"], 1)
        assert sent == [Outgoing(b"b", ON, [("h", b"\xff"), ("n", None)])]


def test_copies_where_a_key_does_not_belong_go_with_their_timestamps() -> None:
    home = partition_of(b"a", 3)
    everywhere = [{"partition": number, "timestamp_ms": number} for number in range(3)]
    elsewhere = [(number, number) for number in range(3) if number != home]
    for partitions, strays in ((3, elsewhere), (1, None), (None, None)):
        _, (sent,) = judged(judge(partitions=partitions), [row(b"a", OTHER, ON, copies=everywhere)])
        assert sent.strays == strays
    _, (sent,) = judged(judge(partitions=3), [row(b"a", OTHER, ON, copies=[everywhere[home]])])
    assert sent.strays is None


@given(
    st.dictionaries(
        st.binary(min_size=1, max_size=3),
        st.tuples(st.sampled_from([..., None, ON, OFF, OTHER]), st.sampled_from([None, ON, OFF]), st.booleans()),
        max_size=30,
    ),
    st.sampled_from(Mode),
    st.sampled_from([PLAIN, SOFT]),
    st.integers(1, 40),
)
def test_however_batches_fall_the_answer_is_that_of_each_key(
    keys: dict[bytes, tuple[Any, bytes | None, bool]], mode: Mode, directory: Directory[Any], size: int
) -> None:
    keys = {key: what for key, what in keys.items() if what[0] is not ... or what[1] is not None}
    rows = [row(key, after, before, spared=spared) for key, (after, before, spared) in sorted(keys.items())]
    tally, sent = judged(judge(mode, directory), rows, size)
    topic = {key: before for key, (_, before, _) in keys.items() if before is not None}
    assert tally.present == sum(map(living(directory), topic.values()))
    topic |= {record.key: record.value for record in sent}
    for key, (after, before, spared) in keys.items():
        kept = after is ... and (mode is Mode.UPSERT or spared or not living(directory)(before))
        assert topic.get(key) == (before if kept else None if after is ... else after)
    assert sum(tally.counts.values()) - tally.counts.get("unchanged", 0) == len(sent)
