"""Guarantee 6 when things go wrong: what a writer says of what it could not deliver is true."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from compactory import (
    CompactoryError,
    ConfigError,
    Directory,
    DirectoryWriter,
    GlobalStore,
    Token,
    Unreachable,
    WaitTimeout,
    WriteFailed,
)
from tests.stack.apache_kafka import ApacheKafka
from tests.store.pausing import paused
from tests.store.topics import Topics, eventually

Opener = Callable[..., GlobalStore]


@pytest.fixture
def make_writer(kafka: str) -> Iterator[Callable[..., DirectoryWriter[Any]]]:
    """Makes writers of topics, closed after the test."""
    writers: list[DirectoryWriter[Any]] = []

    def make(name: str, **options: Any) -> DirectoryWriter[Any]:
        writers.append(DirectoryWriter(kafka, Directory(name, writable=True), **options))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close(timeout=0)


Writers = Callable[..., DirectoryWriter[Any]]


def put_many_if_it_can(writer: DirectoryWriter[Any], entries: list[tuple[str, Any]]) -> list[Token]:
    """The client may take a moment for a new producer id; writing again is what an application would do."""
    try:
        return writer.put_many(entries)
    except WriteFailed as error:
        return [] if error.retryable else pytest.fail(str(error))


def test_a_broker_that_does_not_answer(
    own_kafka: ApacheKafka, topics: Topics, open_store: Opener, make_writer: Writers
) -> None:
    """Guarantee 6: given up within the time-out, said to be unknown, and writing again is all that it takes."""
    name = topics.create(2)
    store, writer = open_store(name), make_writer(name, timeout=1.0)
    eventually(lambda: put_many_if_it_can(writer, [("a", {"n": 0})]))
    with paused(own_kafka):
        began = time.monotonic()
        with pytest.raises(WriteFailed) as caught:
            writer.put("a", {"n": 1})
        assert 0.9 < time.monotonic() - began < 6
        error = caught.value
        assert (error.written, error.not_written, error.unknown) == ({}, (), ("a",))
        assert error.retryable
        assert isinstance(error.cause, Unreachable)
        assert "may be written all the same" in str(error)
        with pytest.raises(WriteFailed) as caught:
            writer.put_many({f"k{number}": {} for number in range(500)})
        assert len(caught.value.unknown) == 500
    tokens = eventually(lambda: put_many_if_it_can(writer, [("a", {"n": 2}), ("b", {"n": 2})]))
    store.wait_for(*tokens, timeout=20)
    assert store[name]["a"] == store[name]["b"] == {"n": 2}


def test_a_failed_delivery_says_which_keys_were_written(
    topics: Topics, open_store: Opener, make_writer: Writers
) -> None:
    """Guarantee 6: the topic's limit was lowered after the writer looked, so the broker refuses what is large."""
    name = topics.create(4)
    store, writer = open_store(name), make_writer(name)
    places = {key: writer.put(key, {}).partition for key in (f"k{number}" for number in range(20))}
    small = [key for key, place in places.items() if place != 0]
    large = [key for key, place in places.items() if place == 0]
    entry = ConfigEntry("max.message.bytes", "500", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    topics.admin.incremental_alter_configs([resource])[resource].result()
    entries = [(key, {"n": 1} if key in small else {"n": 1, "x": os.urandom(2000).hex()}) for key in places]

    def refused() -> WriteFailed | None:
        try:
            writer.put_many(entries)
        except WriteFailed as error:
            return error
        return None

    error = eventually(refused)  # the broker hears of the new limit a moment later
    assert set(error.written) == set(small)
    assert set(error.not_written) == set(large)
    assert error.unknown == ()
    assert not error.retryable
    assert f"of {len(places)} records for topic {name!r} were not acknowledged" in str(error)
    store.wait_for(*error.written.values())
    assert all(store[name][key] == {"n": 1} for key in small)


def test_a_writer_killed_while_it_writes(topics: Topics, open_store: Opener, make_writer: Writers) -> None:
    """Guarantee 6: nothing is torn or out of order, and the next writer goes on."""
    name = topics.create(2)
    store = open_store(name)
    text = (
        "import sys\n"
        "from compactory import Directory, DirectoryWriter\n"
        "writer = DirectoryWriter(sys.argv[1], Directory(sys.argv[2], writable=True))\n"
        "for round in range(1000):\n"
        "    writer.put_many([(f'k{n}', {'n': n, 'round': round}) for n in range(5000)])\n"
    )
    child = subprocess.Popen([sys.executable, "-c", text, topics.address, name])
    try:
        eventually(lambda: sum(store.positions().values()) > 12_000)
    finally:
        child.kill()
        child.wait()
    store.barrier()
    found = dict(store[name].items())
    assert len(found) == 5000
    for partition in (0, 1):
        entries = sorted((store[name].entry(key) for key in found), key=lambda entry: entry.offset)
        order = [
            (found[entry.key]["round"], found[entry.key]["n"]) for entry in entries if entry.partition == partition
        ]
        assert order == sorted(order), "each partition holds a beginning of what was handed over"
    token = make_writer(name).put("k0", {"n": 0, "round": "after"})
    store.wait_for(token)
    assert store[name]["k0"]["round"] == "after"


def test_a_topic_deleted_under_the_writer(topics: Topics, make_writer: Writers) -> None:
    """What went wrong is named, and the next call says so at once; made again, the topic is written to."""
    name = topics.create()
    writer = make_writer(name, timeout=3.0)
    old = writer.put("k", {})
    topics.delete(name)
    with pytest.raises(WriteFailed) as caught:
        writer.put("k", {})
    assert isinstance(caught.value.cause, ConfigError)
    assert "does not exist any more" in str(caught.value)
    began = time.monotonic()
    with pytest.raises(ConfigError, match="does not exist"):
        writer.put("k", {})
    assert time.monotonic() - began < 2.5
    topics.create(name=name)
    new = writer.put("k", {})
    assert (new.offset, new.partition) == (old.offset, old.partition)
    assert new.topic_id != old.topic_id


def test_a_topic_created_again_under_the_writer(topics: Topics, make_writer: Writers, open_store: Opener) -> None:
    """Guarantee 6: no token of the new topic passes for one of the old, nor the other way round."""
    name = topics.create()
    writer = make_writer(name)
    old = writer.put_many([("a", {}), ("b", {})])[-1]
    topics.delete(name)
    eventually(lambda: name not in topics.admin.list_topics(timeout=5).topics)
    topics.create(name=name)
    with pytest.raises(WriteFailed, match=r"deleted and created again.*write again") as caught:
        writer.put("c", {})
    assert caught.value.unknown == ("c",)
    assert caught.value.retryable
    new = writer.put("c", {"n": 1})
    store = open_store(name)
    store.wait_for(new)
    assert dict(store[name].items()) == {"c": {"n": 1}}
    assert new.topic_id == store.topic_id(name) != old.topic_id
    with pytest.raises(WaitTimeout, match="deleted since"):
        store.wait_for(old, timeout=60)


def test_closing_while_others_write(own_kafka: ApacheKafka, topics: Topics, make_writer: Writers) -> None:
    """Close waits for them as long as it may, then gives up what is left: they hear of it, and so does its caller."""
    name = topics.create()
    writer = make_writer(name)
    writer.put("k", {})
    caught: list[BaseException] = []

    def write() -> None:
        try:
            while True:
                writer.put("k", {})
        except CompactoryError as error:
            caught.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    with paused(own_kafka):
        for thread in threads:
            thread.start()
        delivery = writer._delivery
        assert delivery is not None
        eventually(lambda: len(delivery._unfinished) == 4)
        began = time.monotonic()
        with pytest.raises(WriteFailed, match="not acknowledged"):
            writer.close(timeout=0.3)
        assert time.monotonic() - began < 5
        for thread in threads:
            thread.join(10)
    assert len(caught) == 4
    assert {type(error) for error in caught} <= {WriteFailed, CompactoryError}


def test_an_unclosed_writer_does_not_keep_the_program(topics: Topics) -> None:
    name = topics.create()
    text = (
        "import sys\n"
        "from compactory import Directory, DirectoryWriter\n"
        "writer = DirectoryWriter(sys.argv[1], Directory(sys.argv[2], writable=True))\n"
        "print(writer.put('k', {}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text, topics.address, name],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, f"{name}:0:0", "")


def test_an_error_unfinished_is_not_hidden_by_the_end(
    own_kafka: ApacheKafka, topics: Topics, kafka: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = topics.create()
    writer = DirectoryWriter(kafka, Directory(name, writable=True), timeout=0.5)
    writer.start()
    delivery = writer._delivery
    assert delivery is not None

    def write() -> None:
        with pytest.raises(WriteFailed):
            writer.put("k", {})

    def fail() -> None:
        with writer:
            eventually(lambda: delivery._unfinished)
            raise ZeroDivisionError

    thread = threading.Thread(target=write)
    with paused(own_kafka):
        thread.start()
        with pytest.raises(ZeroDivisionError):
            fail()
        thread.join(10)
    assert "1 of 1 records" in caplog.text
