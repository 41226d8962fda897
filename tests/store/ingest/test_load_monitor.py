"""The memory that directories take, its forecast, and the limit."""

from __future__ import annotations

import tracemalloc

import orjson
import pytest

from compactory import ConfigError, Directory, Index, testing
from compactory.ingest.load_monitor import LoadMonitor, container_memory
from compactory.loading import Loading
from compactory.storage.memory_backend import Memory
from tests.store.tables import Log


@pytest.mark.parametrize("key", [None, "name"])
def test_what_a_directory_takes(key: str | None) -> None:
    """Within a fifth of what the interpreter allocates; most of all for equal entries."""
    rows = [(b"%d" % n, orjson.dumps({"name": f"N{n}", "g": n % 50, "u": f"u{n}"}), 1) for n in range(30_000)]
    directory = Directory("d", key=key, indexes=[Index("g"), Index("u", unique=True)])
    log = Log(directory, storage=Memory().open("t"))
    tracemalloc.start()
    try:
        for start in range(0, len(rows), 1000):
            log.load([(bytes([*name]), value, at) for name, value, at in rows[start : start + 1000]])
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    estimate = log.table.directory_storage.memory()
    assert set(estimate) == {"keys", "values", "indexes"}
    assert all(estimate.values())
    assert 0.8 < sum(estimate.values()) / allocated < 1.25


def test_it_warns_before_it_is_too_late(caplog: pytest.LogCaptureFixture) -> None:
    used = [0]
    monitor = LoadMonitor(lambda: used[0], max_bytes=2 << 30)
    for read, used[0] in ((1, 1 << 30), (10, 1 << 28), (20, 1 << 29)):
        monitor.check_memory(Loading(read=read, total=100, seconds=1.0))
    assert caplog.messages == ["the directories will need 2.5 GiB, max_bytes allows 2.0 GiB"]
    used[0] = 2 << 30
    monitor.check_memory(Loading(read=100, total=100, seconds=1.0))
    used[0] += 1
    with pytest.raises(ConfigError, match=r"take 2\.0 GiB after 80% of their topics, 2\.5 GiB in the end; max_bytes"):
        monitor.check_memory(Loading(read=80, total=100, seconds=1.0))
    assert 0 < container_memory() < 1 << 60


def test_a_store_that_takes_too_much_does_not_start() -> None:
    content = {"terminals": {f"T{n}": {"n": n} for n in range(1000)}}
    with testing.store(content, max_bytes=10_000_000) as store:
        assert 100_000 < sum(store.memory()["terminals"].values()) < 500_000
    with pytest.raises(ConfigError, match=r"max_bytes allows 0\.1 MiB"):
        testing.store(content, max_bytes=100_000)
    with pytest.raises(ConfigError, match="max_bytes must be a whole number above 0"):
        testing.store(content, max_bytes=0)
