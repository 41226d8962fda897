"""Pages are bounded by bytes as well as by rows, and learn how large rows are and how quickly Kafka takes them."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory_connectors.source.postgres.chunk_reader import PageBytes, PageFill
from tests.source.poller import Poller, cleared

MIB = 1 << 20
TEXTS = {
    "value__converter": "org.apache.kafka.connect.storage.StringConverter",
    "value__converter__schemas__enable": None,
}
"""Records that Postgres does not write itself."""


@given(
    st.integers(1, 10_000),
    st.lists(st.integers(1, 200_000), min_size=1, max_size=30),
    st.integers(0, 3),
)
def test_a_page_exceeds_its_bytes_by_one_fetch_at_the_most(rows: int, widths: list[int], growth: int) -> None:
    """Whatever the rows: a page has at most its rows, and its bytes are reached only by its last fetch."""
    room = PageBytes()
    for _ in range(growth):
        room.adjust(room.limit, 0.1)
    fill = PageFill(rows, room)
    in_page = size = 0
    for width in widths:
        assert size < room.limit
        fetched = fill.fetch_size()
        assert 1 <= fetched <= min(1000, rows - in_page)
        in_page, size = in_page + fetched, size + fetched * width
        if fill.add_fetch(fetched, fetched * width):
            assert in_page == rows or size + width > room.limit
            in_page = size = 0


def test_what_follows_rows_of_one_size_fits() -> None:
    fill = PageFill(10_000, PageBytes())
    pages, size = 0, 0
    while pages < 5:
        fetched = fill.fetch_size()
        size += fetched * 150_000
        if fill.add_fetch(fetched, fetched * 150_000):
            assert pages == 0 or size <= MIB
            pages, size = pages + 1, 0


def test_a_slow_kafka_gets_smaller_pages_and_a_quick_one_larger_ones() -> None:
    room = PageBytes()
    assert room.limit == MIB
    for _ in range(5):
        room.adjust(room.limit, 0.2)
    assert room.limit == 8 * MIB
    room.adjust(100, 0.01)
    assert room.limit == 8 * MIB
    for _ in range(20):
        room.adjust(room.limit, 8.0)
    assert room.limit == MIB // 16
    room.adjust(100, 0.01)
    assert room.limit == MIB // 16  # a small page says nothing of larger ones


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("timestamp+incrementing", {}),
        ("timestamp+incrementing", TEXTS),
        ("incrementing", {}),
        ("bulk", {}),
        ("timestamp+incrementing", {"query": "SELECT id, note, changed FROM t"}),
    ],
)
def test_rows_are_paged_by_bytes(database: str, mode: str, changes: dict[str, str | None]) -> None:
    """Guarantee 12: of rows of 100 kB a page has few, and all of them come, once and in order."""
    with psycopg.connect(cleared(database), autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int8 PRIMARY KEY, note text, changed timestamp NOT NULL DEFAULT now())")
        sql.execute("INSERT INTO t SELECT n, repeat('x', 100000) FROM generate_series(1, 150) n")
    poller = Poller(database, mode, **changes)
    sizes = []
    batches = poller.reader.batches(10_000)
    keys: list[bytes | None] = []
    for batch in batches:
        sizes.append(sum(len(record[1] or b"") for record in batch.records))
        keys += [record[0] for record in batch.records]
        poller.reader.acknowledge(batch)
    poller.close()
    assert keys == [b"%d" % number for number in range(1, 151)]
    assert sizes[0] <= 32 * 100_100  # nothing was known yet
    assert max(sizes[1:]) <= MIB + 100_100
