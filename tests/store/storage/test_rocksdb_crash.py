"""Guarantee 3 by kill -9: a process that applies a random history is killed at random moments, again and again.

Whatever is found afterwards must be exactly what some prefix of the history makes, as its checkpoint says, and that
prefix must hold everything whose flush had returned.
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

import orjson
import pytest

from compactory import Directory, Index, RocksDB
from compactory.records import Partition
from compactory.storage.backend import DirectoryStorage
from compactory.storage.memory_backend import Memory
from compactory.storage.memory_directory import MemoryDirectoryStorage
from compactory.table.batch import RecordRun
from compactory.table.table import Table
from tests.store.tables import read_to

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "everything": {"key": "name", "active": "isActive", "indexes": [Index("u", unique=True), Index("s", "t")]},
}
Rows = Sequence[tuple[bytes, bytes | None, int]]
_ROWS = 6_000


def history(seed: int) -> Rows:
    """The same rows for the same seed: many keys once, few often, large values now and then, some of them bad."""
    chance = random.Random(seed)
    rows: list[tuple[bytes, bytes | None, int]] = []
    for number in range(_ROWS):
        key = b"%d" % (chance.randrange(50) if chance.random() < 0.4 else number)
        if chance.random() < 0.1:
            rows.append((key, None, number))
            continue
        doc = {
            "name": chance.choice([f"n{chance.randrange(400)}", number]),
            "isActive": chance.random() < 0.9,
            "u": chance.randrange(200),
            "s": chance.choice(["x", "y", None]),
            "t": chance.random() < 0.5,
            "pad": "." * (4000 if chance.random() < 0.05 else 20),
        }
        rows.append((key, b"[" if chance.random() < 0.01 else orjson.dumps(doc), number))
    return rows


def apply(table: Table, rows: Rows, start: int, stop: int) -> None:
    keys, values, stamps = ([row[column] for row in rows[start:stop]] for column in range(3))
    table.apply(RecordRun(Partition("d", 0), keys, values, range(start, stop), stamps))  # type: ignore[arg-type]


def child(path: str, shape: str, seed: int, incomplete: bool) -> None:
    """Write from the position of the folder on, and print the position after each flush, until it is killed."""
    chance, rows = random.Random(os.getpid()), history(seed)
    storage = RocksDB(path, configure=methodcaller("set_write_buffer_size", 1 << 16)).open("d")  # flushed often
    table = Table(Directory("d", **SHAPES[shape]), storage.directory_storage("d"))
    table.multi_partition = shape == "everything"
    at = 0 if storage.checkpoint is None else storage.checkpoint.positions[0]
    print("open", flush=True)
    while at < len(rows):
        end = min(len(rows), at + chance.choice([1, 5, 50, 500]))
        apply(table, rows, at, end)
        storage.commit(read_to(end, complete=not incomplete))
        at = end
        if chance.random() < 0.1:
            storage.flush()
            print(at, flush=True)
    print("end", flush=True)


def killed(path: Path, shape: str, seed: int, incomplete: bool, chance: random.Random) -> int:
    """Run the child and kill it; return up to where it was flushed for certain."""
    call = f"import {__name__} as crash; crash.child({str(path)!r}, {shape!r}, {seed}, {incomplete})"
    process = subprocess.Popen([sys.executable, "-c", call], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline().strip()]
    assert lines == ["open"]
    until = time.monotonic() + chance.random() * 0.4
    while (remaining := until - time.monotonic()) > 0 and lines[-1] != "end":
        if select.select([process.stdout], [], [], remaining)[0]:
            lines.append(process.stdout.readline().strip())
    process.kill()
    output, _ = process.communicate()
    return max((int(line) for line in [*lines, *output.splitlines()] if line.isdigit()), default=0)


def contents(directory_storage: DirectoryStorage, parts: Sequence[str], terms: dict[str, list[Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {part: dict(directory_storage.mapping(part).items()) for part in parts}
    result["all"] = {name: directory_storage.entries[name] for name in directory_storage.reading().all_keys()}
    result["sizes"] = directory_storage.sizes()
    for index, expected_terms in terms.items():
        result[index] = {term: sorted(directory_storage.reading().keys_of_term(index, term)) for term in expected_terms}
        result[f"terms of {index}"] = set(directory_storage.reading().terms(index))
    return result


def expected(shape: str, rows: Rows, upto: int) -> tuple[MemoryDirectoryStorage, list[str], dict[str, list[Any]]]:
    """Return the entries of a table in memory after the same rows."""
    directory = Directory("d", **SHAPES[shape])
    directory_storage = Memory().open("d").directory_storage("d")
    table = Table(directory, directory_storage)
    table.multi_partition = shape == "everything"
    apply(table, rows, 0, upto)
    terms = {index.name: list(directory_storage.reading().terms(index.name)) for index in directory.indexes}
    return directory_storage, [*directory_storage._written, *directory_storage._small], terms


@pytest.mark.parametrize(
    ("shape", "incomplete"),
    [("plain", False), ("everything", False), ("everything", True)],
    ids=["plain", "everything", "everything while loading"],
)
def test_kill_9_loses_nothing_flushed_and_invents_nothing(
    tmp_path: Path, shape: str, incomplete: bool, seeded: random.Random
) -> None:
    """Guarantee 3: entries, indexes, counts and positions agree, however the process ends."""
    seed, at = seeded.randrange(2**32), 0
    rows = history(seed)
    for _ in range(3):
        flushed = killed(tmp_path, shape, seed, incomplete, seeded)
        backend = RocksDB(tmp_path)
        storage = backend.open("d")
        reached = 0 if storage.checkpoint is None else storage.checkpoint.positions[0]
        print(f"flushed {flushed}, found {reached}")
        assert reached >= max(flushed, at)
        directory_storage, parts, terms = expected(shape, rows, reached)
        assert contents(storage.directory_storage("d"), parts, terms) == contents(directory_storage, parts, terms)
        at = reached
        storage.close()
        backend.close()
