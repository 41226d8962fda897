"""The memory that directories take."""

from __future__ import annotations

import tracemalloc

import orjson
import pytest

from compactory import Directory, Index
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
