"""What is kept of bad records, and for how much memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from compactory import BadRecord, Directory, Index, RocksDB
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
    assert len(quarantine.names) == 1100
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
        assert not log.table.quarantine.names


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
