"""What is kept of bad records, and for how much memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compactory import BadRecord, Change, Directory, Entry, Index, RocksDB
from compactory.table import bad_records as quarantine
from tests.store.tables import Log


def test_memory_is_bounded_however_many_are_bad() -> None:
    """Guarantee 4: beyond the newest 1,000 it is only known which keys are bad; not even a buffer stays behind."""
    log = Log(Directory("d"))
    log.put("0", "x" * 10_000)
    [first] = log.table.quarantine
    tracemalloc.start()
    try:
        for number in range(1, 3000):
            log.put(str(number), "x" * 10_000)
        assert tracemalloc.get_traced_memory()[0] < 60e6, "values of 10 kB, and what is made of them, 1,000 times"
    finally:
        tracemalloc.stop()
    assert [error.offset for error in log.table.quarantine] == list(range(2000, 3000))
    with pytest.raises(BadRecord):
        log.view["0"]
    assert not log.table.retry(first), "its value is not known any more"
    with pytest.raises(BadRecord):
        log.view["0"]
    log.put("0", "{}")
    assert log.view["0"] == {}
    log.delete("1")
    assert log.view.get("1") is None


def test_what_is_not_kept_whole_is_no_tombstone_after_a_restart(tmp_path: Path) -> None:
    """Guarantee 4: a restart tries all bad records once more; one without its value must not delete the entry."""
    directory = Directory("d")
    backend = RocksDB(tmp_path)
    log = Log(directory, storage=backend.open("d"))
    log.put("0", '{"n":1}')
    for number in range(1100):
        log.put(str(number), "bad")
    log.storage.close()
    backend.close()
    backend = RocksDB(tmp_path)
    log = Log(directory, storage=backend.open("d"))
    quarantine = log.table.quarantine
    assert len(list(quarantine)) == 1000
    assert len(quarantine.bad_lookup_keys) == 1100
    for error in quarantine:
        log.table.retry(error)
    assert log.view["0"] == {"n": 1}
    with pytest.raises(BadRecord):
        log.view["50"]
    log.storage.close()
    backend.close()


def test_two_bad_records_of_one_lookup_key() -> None:
    """Guarantee 4: the older is still known when the newer is superseded; which of them goes first makes no odds."""
    for first, second in (("1", "2"), ("2", "1")):
        log = Log(Directory("d", key="name", indexes=[Index("tags")]))
        for key in ("1", "2"):
            log.put(key, '{"name":"n","tags":[]}')
        assert log.table.quarantine.outstanding == 2
        log.delete(first)
        with pytest.raises(BadRecord):
            log.view["n"]
        assert log.table.quarantine.outstanding == 1
        log.delete(second)
        assert log.view.get("n") is None
        assert not log.table.quarantine.bad_lookup_keys


def test_all_bad_records_are_counted() -> None:
    """Guarantee 4: also those without a key, and those that are not kept whole any more."""
    log = Log(Directory("d"))
    for number in range(1200):
        log.put(str(number), "bad")
        log.put(None, "{}")
    assert log.table.quarantine.outstanding == 2400
    assert len(list(log.table.quarantine)) == 1000
    skipped = next(iter(log.table.quarantine))
    assert log.table.quarantine.skip(skipped)
    log.put("0", "{}")
    assert log.table.quarantine.outstanding == 2398


def test_large_bad_records_after_many_small_ones_end_nothing() -> None:
    """Guarantee 4: as many small ones as it takes make room for one large one, however many these are."""
    log = Log(Directory("d"))
    for number in range(900):
        log.put(str(number), "bad")
    for number in range(900, 970):
        log.put(str(number), b"x" * 1_000_000)
    assert 60 < len(list(log.table.quarantine)) < 70
    assert log.table.quarantine.outstanding == 970
    with pytest.raises(BadRecord):
        log.view["0"]


def test_what_is_kept_whole_is_in_memory_once() -> None:
    """Guarantee 4: 64 MiB of bad records take 64 MiB."""
    log = Log(Directory("d"))
    tracemalloc.start()
    try:
        for number in range(80):
            log.put(str(number), b"x" * 1_000_000)
        assert tracemalloc.get_traced_memory()[0] < 1.1 * 2**26
    finally:
        tracemalloc.stop()
    assert len(list(log.table.quarantine)) == 67


def test_an_error_that_cannot_be_printed_is_a_bad_record() -> None:
    """Guarantee 4."""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError("nor can this")

    def decode(value: bytes) -> str:
        raise Unprintable

    log = Log(Directory("d", decode=decode))
    log.put("a", "\ud800".encode(errors="surrogatepass"))
    [bad] = log.table.quarantine
    assert bad.error.startswith("Unprintable")


def test_an_inactive_row_whose_key_is_no_text_ends_nothing() -> None:
    """Guarantee 4: half a surrogate pair, which JSON's escapes may have, is no key."""
    log = Log(Directory("d", key="id", active="on", envelope=json.loads))
    log.put("a", r'{"id":"\ud800","on":true}')
    log.put("b", r'{"id":"\ud800","on":false}')
    assert [bad.key for bad in log.table.quarantine] == [b"a"]


class Projection:
    """Refuses what has an old value."""

    def apply(self, change: Change[Any]) -> None:
        if change.old is not None:
            raise KeyError(change.key)


KINDS: list[dict[str, Any]] = [
    {},
    {"decode": bytes},
    {"decode": str, "indexes": [Index("g"), Index("id", "g")]},
    {"key": "id", "active": "on", "indexes": [Index("g", unique=True)]},
    {"key": "id", "active": "on", "indexes": [Index("g")], "envelope": json.loads},
    {"envelope": "debezium", "keep_changes": True},
    {"decode": Entry, "projection": Projection},
]


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.sampled_from(["\ud800", "A", 10**400])
)
VALUES = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.builds(lambda size: b"x" * size, st.sampled_from([0, 1, 4096, 200_000])),
    st.dictionaries(st.sampled_from(["id", "on", "g", "after", "op", "payload"]), SCALARS).map(
        lambda fields: json.dumps(fields).encode()
    ),
    st.sampled_from([b'{"after":{"id":1}}', b"[" * 100_000, b'{"a":' * 2000, b'{"g":1e999}', b"null", b'{"g":NaN}']),
)
KEYS = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"\xff", b"k" * 70_000]), st.binary(max_size=3))
RECORDS = st.tuples(KEYS, VALUES, st.sampled_from([-1, 0, 1, 2**62]))
MANY_SMALL = [(b"%d" % number, b"x", 0) for number in range(900)]
SOME_LARGE = [(b"large %d" % number, b"x" * 1_600_000, 0) for number in range(2)]
ROWS = st.one_of(st.lists(RECORDS, min_size=1, max_size=12), st.sampled_from([MANY_SMALL, SOME_LARGE]))
RUNS = st.lists(st.tuples(st.integers(0, 1), st.booleans(), ROWS), max_size=8)


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@settings(max_examples=20, deadline=None)
@given(kind=st.sampled_from(KINDS), runs=RUNS)
@example(kind={}, runs=[(0, False, MANY_SMALL), (0, False, SOME_LARGE)])
def test_no_sequence_of_records_of_any_sizes_ends_a_reader(
    backend: str, tmp_path_factory: pytest.TempPathFactory, kind: dict[str, Any], runs: Any
) -> None:
    """Guarantee 4: whatever comes, in runs or one by one, is applied or is a bad record, which is counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quarantine, "_MAX_BYTES", 1_500_000)
        disk = RocksDB(tmp_path_factory.mktemp("disk")) if backend == "rocksdb" else None
        log = Log(Directory("d", **kind), storage=disk.open("d") if disk else None)
        log.table.multi_partition = any(partition for partition, _, _ in runs)
        if kind.get("keep_changes"):
            log.table.changes.start_recording()
        for partition, loading, rows in runs:
            log.load(rows, partition=partition, loading=loading)
            log.table.changes.publish({partition: log._next})
        whole = list(log.table.quarantine)
        assert len(whole) <= 1000
        assert log.table.quarantine.outstanding >= len(whole)
        for bad in whole[:5]:
            log.table.retry(bad)
        log.storage.close()
        if disk:
            disk.close()
