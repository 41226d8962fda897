"""A version names exactly the record that was read, and gives it back for as long as the log has it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from compactory import ConfigError, Directory, GlobalStore, UnknownDirectory, Version, VersionGone, testing
from tests.store.ingest.test_rebuild import recreate
from tests.store.topics import Topics, eventually

Opener = Callable[..., GlobalStore]


def test_a_version_gives_the_entry_of_then(topics: Topics, open_store: Opener) -> None:
    topic = topics.create(partitions=2, cleanup_policy="compact,delete")
    topics.produce(topic, ("a", '{"id":"A","n":1}'), partition=1)
    keyed = Directory("keyed", topic=topic, key="id")
    store = open_store(topic, keyed)
    value, version = store[topic].versioned("a")
    [token] = topics.commit(topic, ("a", '{"id":"A","n":2}'), partition=1)
    store.wait_for(token)
    newer = store[topic].versioned("a")
    assert (value["n"], newer[0]["n"]) == (1, 2)
    assert version == Version.parse(str(version)) == Version(str(store.topic_id(topic)), 1, 0)
    then = store.at(str(version))
    assert (then.key, then.value, then.partition, then.offset) == ("a", b'{"id":"A","n":1}', 1, 0)
    assert store.at(newer[1]).value == b'{"id":"A","n":2}'
    assert store.at(version, "keyed").key == "A"
    [gone] = topics.produce(topic, ("a", None), partition=1)
    for lacking in (version._replace(offset=gone.offset), version._replace(offset=gone.offset - 1)):
        with pytest.raises(VersionGone):  # a deletion; the mark of the transaction
            store.at(lacking)
    with pytest.raises(VersionGone, match="not in the log"):
        store.at(version._replace(offset=99))
    with pytest.raises(VersionGone, match="partition 7"):
        store.at(version._replace(partition=7))
    topics.cut(topic, 1, partition=1)
    with pytest.raises(VersionGone, match="compaction"):
        store.at(version)
    with pytest.raises(UnknownDirectory):
        store.at(version, "nope")
    for text in ("", "x", "a-b-c", "a-1", "-1-1", "a-1-99999999999999999999"):
        with pytest.raises(ConfigError, match="not a version"):
            store.at(text)


def test_a_topic_that_was_created_again_is_not_mistaken(topics: Topics, open_store: Opener) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", '{"n":1}'))
    store = open_store(topic)
    _, version = store[topic].versioned("a")
    recreate(topics, topic)
    topics.produce(topic, ("a", '{"n":2}'))
    with pytest.raises(VersionGone):
        store.at(version)
    eventually(lambda: store[topic].get("a") == {"n": 2})
    with pytest.raises(VersionGone):
        store.at(version)
    assert store.at(store[topic].versioned("a")[1]).value == b'{"n":2}'


def test_value_and_version_are_of_one_record() -> None:
    with testing.store({"d": {"a": {"n": 0}}}) as store:
        ended = threading.Event()

        def write() -> None:
            for number in range(1, 200):
                store.put("d", "a", {"n": number})
            ended.set()

        thread = threading.Thread(target=write)
        thread.start()
        while not ended.is_set():
            value, version = store["d"].versioned("a")
            assert version.offset == value["n"]
        thread.join()
        assert store.at(version).value == b'{"n":%d}' % value["n"]
