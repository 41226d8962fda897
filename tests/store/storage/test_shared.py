"""`Shared`: a follower sees exactly what it has read itself, whatever its owner's copy holds by then."""

from __future__ import annotations

import random
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from compactory import BackendFailed, Directory, GlobalStore, Index, Shared, StartTimeout, StoreClosed
from compactory.storage.shared import database, environment
from tests.forks import forked
from tests.store.entries.test_history import SHAPES, compare, random_value
from tests.store.ingest.test_rebuild import recreate
from tests.store.model import Model, Row
from tests.store.tables import Log, read_to
from tests.store.topics import Topics, eventually

Opener = Callable[..., GlobalStore]


def opened(path: Path) -> Shared:
    made = Shared(path)
    assert made.available(["t"])
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_followers_behind_and_ahead_of_their_owner(shape: str, seeded: random.Random, tmp_path: Path) -> None:
    """Guarantees 1 and 5: at each position a follower answers as the model of that position does."""
    directory = Directory("d", **SHAPES[shape])
    for number in range(25):
        owner = opened(tmp_path / f"{number}")
        first = Log(directory, storage=owner.open("t"))
        rows: list[tuple[bytes, bytes | None, int]] = []
        for _ in range(60):
            key = seeded.choice([*"1234", "long" * 200, "long" * 201]).encode()
            rows.append((key, random_value(seeded), seeded.randrange(20)))
        begun = seeded.randrange(20)
        for key, value, at in rows[:begun]:
            first.put(key, value, at=at)
        first.storage.commit(read_to(begun))
        other = opened(tmp_path / f"{number}")
        second, model = Log(directory, storage=other.open("t")), Model(directory)
        second._next = begun
        model.rows = [Row(key, value, 0, offset, at) for offset, (key, value, at) in enumerate(rows[:begun])]
        compare(second.view, model)
        ahead, at_end = begun, begun
        while at_end < len(rows):
            log, position = (first, ahead) if seeded.random() < 0.5 and ahead < len(rows) else (second, at_end)
            for key, value, at in rows[position : position + seeded.randrange(1, 5)]:
                offset = log.put(key, value, at=at)
                if log is second:
                    model.rows.append(Row(key, value, 0, offset, at))
            ahead, at_end = first._next, second._next
            if seeded.random() < 0.5:
                second.storage.database.flush()
            compare(second.view, model)
            assert list(second.view.prefix("")) == sorted(second.view.items())
        for key, value, at in rows[ahead:]:
            first.put(key, value, at=at)
        for _ in range(3):  # what it read alone goes, step by step
            second.storage.database.flush()
        assert second.storage.figures()["own_changes"] == 0
        compare(second.view, model)
        second.storage.close()
        other.close()
        compare(first.view, model)
        first.storage.close()
        owner.close()


def test_a_reader_that_does_not_move_on_pins_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_SPARE", 1 << 20)
    owner = opened(tmp_path)
    log = Log(Directory("d"), storage=owner.open("t"))
    log.put("held", "{}")
    held = log.table.directory_storage.reading()
    other = opened(tmp_path)
    follower = other.open("t")
    sizes = set()
    for number in range(40):
        log.load([(b"%d" % n, b'{"round":%d,"pad":"%s"}' % (number, b"." * 200), 1) for n in range(1000)])
        log.storage.flush()
        sizes.add(sum(path.stat().st_size for path in tmp_path.rglob("data.mdb")))
    assert max(sizes) < 8 << 20
    assert list(held.all_keys()) == [b"held"]
    assert len(log.view) == 1001
    database_of = follower.database
    follower.commit(read_to(log._next))
    database_of.flush()
    assert database_of.path == log.storage.database.path  # a follower goes along
    follower.close()
    log.storage.close()
    with pytest.raises(StoreClosed):
        log.table.directory_storage.reading()


def test_a_copy_that_goes_while_a_follower_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = opened(tmp_path)
    served = owner.open("t")
    served.commit(read_to(1))
    other = opened(tmp_path)
    follower = Log(Directory("d"), storage=other.open("t"))
    former = served.database.path

    def gone(path: Path, *_: int, create: bool) -> None:
        assert (path, create) == (former, False)
        monkeypatch.undo()
        owner.promote("t", owner.fresh("t"))
        raise BackendFailed("No such file or directory", str(path))

    monkeypatch.setattr(environment, "opened", gone)
    follower.storage.flush()
    assert not former.exists()

    def broken(path: Path, *_: int, create: bool) -> None:
        raise BackendFailed("Permission denied", str(path))

    monkeypatch.setattr(environment, "opened", broken)
    with pytest.raises(BackendFailed):  # it is there, and can't be opened
        follower.storage.flush()
    follower.storage.close()
    owner.close()


def test_a_copy_of_before_a_crash_of_the_machine_is_set_aside(tmp_path: Path) -> None:
    owner = opened(tmp_path)
    log = Log(Directory("d"), storage=owner.open("t"))
    log.put("a", "{}")
    path = log.storage.database.path
    log.storage.close()
    owner.close()
    for content, kept in (("", True), ("another run", False)):
        if content:
            (path / "USING").write_text(content, encoding="ascii")
        owner = opened(tmp_path)
        storage = owner.open("t")
        assert (storage.checkpoint is not None) is kept
        storage.close()
        owner.close()
    assert list(tmp_path.rglob("damaged-*"))


def test_a_disk_that_takes_no_more_is_told_with_its_remedy(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: LMDB calls a write that is cut off an input/output error."""

    def write() -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        log = Log(Directory("d", decode=bytes), storage=opened(tmp_path).open("t"))
        try:
            for number in range(100):
                log.put(f"{number}", b"x" * 10_000)
        except BackendFailed as error:
            return str(error)
        return "nothing"

    assert "/000001: the disk is full or fails" in forked(write)


_CHILD = """
import sys
from compactory import Directory, GlobalStore, Index, Shared
store = GlobalStore(sys.argv[1], [Directory(sys.argv[2], indexes=[Index("n")])], backend=Shared(sys.argv[3]))
print("made", flush=True)
store.start()
print("ready", flush=True)
sys.stdin.read()
"""


def child(kafka: str, topic: str, path: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", _CHILD, kafka, topic, str(path)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 60)[0]
    assert process.stdout.readline().strip() == wanted


def test_an_owner_that_is_killed(topics: Topics, kafka: str, tmp_path: Path, open_store: Opener) -> None:
    """Guarantees 2 and 3: its followers go on, and the next process goes on with the copy."""
    topic = topics.create()
    topics.produce(topic, *((f"k{n}", f'{{"n":{n}}}') for n in range(2000)))
    owner = child(kafka, topic, tmp_path)
    said(owner, "made")
    said(owner, "ready")
    directory = Directory(topic, indexes=[Index("n")])
    follower = open_store(directory, backend=Shared(tmp_path))
    assert follower.figures()[("", "owner")] == 0
    assert (len(follower[topic]), follower.loading().read) == (2000, 0)  # nothing was read of Kafka
    producing: Any = topics.produce(topic, *((f"k{n}", '{"n":-1}') for n in range(1500)))
    owner.kill()  # at some moment of the batch
    owner.communicate()
    follower.wait_for(producing[-1], timeout=20)
    assert len(follower[topic].find(n=-1)) == 1500
    with pytest.raises(KeyError):
        follower[topic]["new"]
    again = child(kafka, topic, tmp_path)
    said(again, "made")
    said(again, "ready")
    [token] = topics.produce(topic, ("new", '{"n":7}'))
    follower.wait_for(token, timeout=20)
    assert follower[topic].find(n=7) == [{"n": 7}]
    eventually(lambda: follower.figures()[(topic, "own_changes")] == 0)  # it took the copy of the new owner
    assert len(follower[topic]) == 2001
    recreate(topics, topic)
    topics.produce(topic, ("x", '{"n":1}'))
    eventually(lambda: dict(follower[topic].items()) == {"x": {"n": 1}})
    again.kill()
    again.communicate()
    follower.close()
    last = open_store(directory, backend=Shared(tmp_path))
    assert last.figures()[("", "owner")] == 1
    assert dict(last[topic]) == {"x": {"n": 1}}


def test_a_follower_waits_for_the_first_copy(topics: Topics, tmp_path: Path, kafka: str, open_store: Opener) -> None:
    owner = opened(tmp_path)  # and loads for ever
    topic = topics.create()
    topics.produce(topic, ("a", "{}"))
    with pytest.raises(StartTimeout, match="another process"):
        open_store(topic, backend=Shared(tmp_path), start_timeout=0.3)
    owner.close()  # as if it had died: the next one takes over
    assert dict(open_store(topic, backend=Shared(tmp_path))[topic]) == {"a": {}}


def test_an_environment_that_another_thread_is_closing(tmp_path: Path) -> None:
    """It is waited for: Python forgets an environment before LMDB has closed it."""
    held = environment.library().open(str(tmp_path))
    closing = Timer(0.05, held.close)
    closing.start()
    assert environment.opened(tmp_path, 1 << 20, create=True).info()
    closing.join()
