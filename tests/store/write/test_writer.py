"""DirectoryWriter: what it writes is what a store reads, and what a store could not read is never written."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from compactory import (
    CompactoryError,
    ConfigError,
    Directory,
    DirectoryWriter,
    GlobalStore,
    Index,
    Partition,
    Token,
    Unreachable,
    WriteFailed,
    WriteRefused,
)
from tests.forks import forked
from tests.store.topics import Topics, eventually

Opener = Callable[..., GlobalStore]
NOWHERE = "127.0.0.1:1"


@dataclass
class Terminal:
    terminalId: str  # noqa: N815 (the fields of the JSON)
    fee: float = 0.0
    tags: list[str] = field(default_factory=list)


@dataclass
class Dated:
    when: datetime
    kind: Literal["day", "hour"] = "day"


NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


class Tariff(BaseModel):
    model_config = ConfigDict(frozen=True)
    tariff_id: str = Field(alias="tariffId")
    since: datetime
    rate: float = 1.5


class Point:
    """A class that nobody knows how to write but its user."""

    def __init__(self, x: int) -> None:
        self.x = x


def make_point(value: bytes) -> Point:
    return Point(int(value))


def writer_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "compactory-writer"]


@pytest.fixture
def open_writer(kafka: str) -> Iterator[Callable[..., DirectoryWriter[Any]]]:
    """Makes writers, closed after the test."""
    writers: list[DirectoryWriter[Any]] = []

    def make(directory: str | Directory[Any], **options: Any) -> DirectoryWriter[Any]:
        directory = Directory(directory, writable=True) if isinstance(directory, str) else directory
        writers.append(DirectoryWriter(kafka, directory, **options))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


Writers = Callable[..., DirectoryWriter[Any]]


def murmur2(data: bytes) -> int:
    """Java's ``org.apache.kafka.common.utils.Utils.murmur2``, written down from its description."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    for at in range(0, len(data) - len(data) % 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    tail = data[len(data) - len(data) % 4 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_the_writers_own_store_reads_its_writes(topics: Topics, open_store: Opener, open_writer: Writers) -> None:
    """Guarantee 6: put, delete and put_many, each visible once its token was waited for."""
    name = topics.create(3)
    store, writer = open_store(name), open_writer(name)
    for number in range(20):
        token = writer.put(f"k{number % 4}", {"n": number, "text": "ж", "deep": {"list": [1, None, True]}})
        assert token.topic_id == store.topic_id(name) is not None
        store.wait_for(token)
        assert store[name][f"k{number % 4}"]["n"] == number
    gone = writer.delete("k1")
    tokens = writer.put_many({f"m{number}": {"n": number} for number in range(50)})
    store.wait_for(gone, *tokens)
    assert "k1" not in store[name]
    assert [store[name][f"m{number}"]["n"] for number in range(50)] == list(range(50))
    assert [store[name].entry(f"m{number}").offset for number in range(50)] == [token.offset for token in tokens]
    assert writer.put_many([]) == []
    assert writer.delete("never there").offset >= 0


def test_tokens_of_two_topics_and_a_barrier(topics: Topics, open_store: Opener, open_writer: Writers) -> None:
    """Guarantee 6."""
    one, two = topics.create(), topics.create(2)
    store = open_store(one, two)
    first, second = open_writer(one), open_writer(two)
    for number in range(20):
        store.wait_for(first.put("a", {"n": number}), *second.put_many([("a", {"n": number}), ("b", {"n": number})]))
        assert store[one]["a"] == store[two]["a"] == store[two]["b"] == {"n": number}
        first.put("a", {"n": -number})
        store.barrier()
        assert store[one]["a"] == {"n": -number}


@pytest.mark.parametrize(
    ("decode", "value", "raw"),
    [
        (dict, {"a": 1}, b'{"a":1}'),
        (str, "žluť\x00", "žluť\x00".encode()),
        (str, "", b""),
        (bytes, b"\x00\xff", b"\x00\xff"),
        (bytes, b"", b""),
        (Terminal, Terminal("T1", 0.5, ["x"]), b'{"terminalId":"T1","fee":0.5,"tags":["x"]}'),
        (Tariff, Tariff(tariffId="A", since=datetime(2026, 1, 2)), None),  # noqa: DTZ001 (it has no zone)
    ],
    ids=lambda item: getattr(item, "__name__", None),
)
def test_every_kind_of_value(
    topics: Topics, open_store: Opener, open_writer: Writers, decode: Any, value: Any, raw: bytes | None
) -> None:
    """What was put reads back equal; an empty value is a value and no tombstone."""
    directory = Directory(topics.create(), decode=decode, writable=True)
    store, writer = open_store(directory), open_writer(directory)
    store.wait_for(writer.put("k", value))
    assert store.directory(directory)["k"] == value
    assert type(store.directory(directory)["k"]) is type(value)
    if raw is not None:
        assert store[directory.name].raw("k") == raw
    assert not store.quarantine()


def test_a_value_that_only_its_user_can_write(topics: Topics, open_store: Opener, open_writer: Writers) -> None:
    directory = Directory(topics.create(), decode=make_point, writable=True)
    with pytest.raises(ConfigError, match=r"'make_point'.*give the writer encode="):
        DirectoryWriter(NOWHERE, directory)
    store, writer = open_store(directory), open_writer(directory, encode=lambda point: b"%d" % point.x)
    store.wait_for(writer.put("k", Point(7)))
    assert store.directory(directory)["k"].x == 7
    for encode, told in (
        (str, "encode returned str, not bytes"),
        (lambda _: b"seven", "decode refuses the value: ValueError"),
        (lambda _: 1 / 0, "Point can't be written here: ZeroDivisionError"),
    ):
        with pytest.raises(WriteRefused, match=told):
            DirectoryWriter(NOWHERE, directory, encode=encode).put("k", Point(7))


@pytest.mark.parametrize(
    ("options", "key", "value", "told"),
    [
        ({}, "", {}, "is empty"),
        ({}, 7, {}, "are text, not int"),
        ({}, b"k", {}, "are text, not bytes"),
        ({}, "\ud800", {}, "half of a surrogate pair"),
        ({}, "k", None, "delete\\(\\) removes an entry"),
        ({}, "k", [], "list can't be written here: a dict is needed"),
        ({}, "k", b'{"a":1}', "bytes can't be written here"),
        ({}, "k", {1: 2}, "dict can't be written here: Dict key must be str"),
        ({}, "k", {"a": object()}, "dict can't be written here: Type is not JSON serializable: object"),
        ({}, "k", {"a": "\ud800"}, "dict can't be written here: str is not valid UTF-8"),
        ({}, "k", {"a": 2**64}, "dict can't be written here: Integer exceeds 64-bit range"),
        ({}, "k", {"a": float("nan")}, "read back as something else"),
        ({}, "k", {"a": (1, 2)}, "read back as something else"),
        ({}, "k", {"a": datetime(2026, 1, 1)}, "read back as something else"),  # noqa: DTZ001
        ({"decode": str}, "k", b"x", "a str is needed"),
        ({"decode": str}, "k", "\ud800", "UnicodeEncodeError"),
        ({"decode": bytes}, "k", "x", "a bytes is needed"),
        ({"decode": Terminal}, "k", {"terminalId": "k"}, "a Terminal is needed"),
        ({"decode": Dated}, "k", Dated(5), r"Expected `datetime`, got `int` - at `\$.when`"),  # type: ignore[arg-type]
        ({"decode": Dated}, "k", Dated(NEW_YEAR, kind="secret"), r"'k': Invalid enum value - at `\$.kind`"),  # type: ignore[arg-type]
        ({"key": "id"}, "k", {"id": "other"}, "'id' holds another key"),
        ({"key": "id"}, "k", {}, "key field 'id' is missing or null"),
        ({"key": "id"}, "k", {"id": 1.5}, "key field 'id' is float"),
        ({"key": "a.id"}, "k", {"a": {"id": "x"}}, "'a.id' holds another key"),
        ({"indexes": [Index("a")]}, "k", {"a": {}}, "index field 'a' holds dict"),
        ({"decode": str, "active": "on"}, "k", "[]", "JSON of type list; an object is needed"),
        ({"decode": bytes, "active": "on"}, "k", b"", "the value is not JSON"),
    ],
)  # fmt: skip
def test_what_readers_could_not_use_is_refused_without_asking_kafka(
    options: dict[str, Any], key: Any, value: Any, told: str
) -> None:
    writer = DirectoryWriter(NOWHERE, Directory("d", writable=True, **options))
    with pytest.raises(WriteRefused, match=told):
        writer.put(key, value)
    with pytest.raises(WriteRefused, match=told):
        writer.put_many([(key, value)])


def test_keys_that_can_not_be_deleted_and_pairs_that_are_none() -> None:
    writer = DirectoryWriter(NOWHERE, Directory("d", writable=True))
    for key in ("", None, "\udfff"):
        with pytest.raises(WriteRefused):
            writer.delete(key)  # type: ignore[arg-type]
    for entries in (["ab", "cd"], [("a",)], [1]):
        with pytest.raises(WriteRefused):
            writer.put_many(entries)  # type: ignore[arg-type]


def test_one_bad_entry_refuses_the_whole_call(topics: Topics, open_store: Opener, open_writer: Writers) -> None:
    name = topics.create()
    store, writer = open_store(name), open_writer(name)
    entries = [(f"k{number}", {"n": number} if number % 10 else None) for number in range(1000)]
    with pytest.raises(WriteRefused) as caught:
        writer.put_many(entries)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 21
    assert "'k0': None is not a value" in caught.value.problems[0]
    assert caught.value.problems[-1] == "and 80 more"
    writer.start()
    assert store.end_offsets() == {Partition(name, 0): 0}


def test_with_a_key_field_the_record_is_its_own(topics: Topics, open_store: Opener, open_writer: Writers) -> None:
    """A whole number in the field is its decimal text; delete removes what was written, not what others own."""
    directory = Directory(topics.create(), key="id", active="on", indexes=[Index("owner")], writable=True)
    writer = open_writer(directory)
    topics.produce(directory.topic, ("row 1", '{"id":7,"from":"source"}'), timestamp=1000)
    tokens = [writer.put("7", {"id": 7, "owner": "me"})]
    tokens += writer.put_many([("8", {"id": "8", "on": True}), ("9", {"id": "9", "on": False})])
    store = open_store(directory)
    store.wait_for(*tokens)
    assert store[directory.name]["7"] == {"id": 7, "owner": "me"}
    assert store[directory.name].find(owner="me") == [{"id": 7, "owner": "me"}]
    assert set(store[directory.name]) == {"7", "8"}
    store.wait_for(writer.delete("7"))
    assert store[directory.name]["7"] == {"id": 7, "from": "source"}


def test_keys_go_where_java_puts_them(topics: Topics, open_writer: Writers) -> None:
    """Else a key of another producer would live on in a second partition."""
    assert murmur2(b"21") == -973932308 & 0xFFFFFFFF, "Kafka's own test vector"
    assert murmur2(b"foobar") == -790332482 & 0xFFFFFFFF
    writer = open_writer(topics.create(7))
    keys = [*(f"T{number}" for number in range(200)), "ж", "a b", "x" * 300]
    tokens = writer.put_many([(key, {}) for key in keys])
    assert [token.partition for token in tokens] == [(murmur2(key.encode()) & 0x7FFFFFFF) % 7 for key in keys]
    assert writer.delete("T7").partition == tokens[7].partition


def test_two_threads_that_write_one_key(topics: Topics, open_store: Opener, open_writer: Writers) -> None:
    """Guarantee 6: what the later token stands for is what everybody sees."""
    name = topics.create(2)
    store, writer = open_store(name), open_writer(name)
    written: list[tuple[Token, dict[str, int]]] = []

    def write(thread: int) -> None:
        for number in range(50):
            value = {"thread": thread, "number": number}
            token = writer.put("k", value) if number % 3 else writer.put_many([("k", {}), ("k", value)])[1]
            written.append((token, value))

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({token for token, _ in written}) == 200
    last, value = max(written, key=lambda pair: pair[0].offset)
    store.wait_for(last)
    assert store[name]["k"] == value
    for thread in range(4):
        offsets = [token.offset for token, value in written if value["thread"] == thread]
        assert offsets == sorted(offsets)


def test_a_writer_needs_a_directory_that_may_be_written() -> None:
    for directory, told in (
        (Directory("d"), "'d' is not writable: give it writable=True"),
        ("d", "must be a Directory"),
    ):
        with pytest.raises(ConfigError, match=told):
            DirectoryWriter(NOWHERE, directory)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        DirectoryWriter(
            {"bootstrap.servers": NOWHERE, "acks": 1, "enable.idempotence": False}, Directory("d"), timeout=0
        )
    assert len(caught.value.problems) == 4
    with pytest.raises(ConfigError, match="does not write in transactions"):
        DirectoryWriter({"bootstrap.servers": NOWHERE, "transactional.id": "x"}, Directory("d", writable=True))
    DirectoryWriter(
        {"bootstrap.servers": NOWHERE, "acks": -1, "enable.idempotence": "true"}, Directory("d", writable=True)
    )


def test_a_topic_that_does_not_exist(topics: Topics, open_writer: Writers, open_store: Opener) -> None:
    """It is refused with the nearest name, or made, compacted, where that is asked for."""
    name = topics.create()
    with pytest.raises(ConfigError, match=f"does not exist on .*did you mean {name!r}"):
        open_writer(f"{name}x").put("k", {})
    new = topics.unique("quite-unlike-any-other")
    with pytest.raises(ConfigError, match="or give create=True"):
        open_writer(new).start()
    token = open_writer(new, create=True).put("k", {"n": 1})
    store = open_store(new)
    store.wait_for(token)
    assert store[new]["k"] == {"n": 1}
    assert store._engine.kafka.topic_configs([new])[new]["cleanup.policy"] == "compact"
    open_writer(new, create=True).put("k", {"n": 2})


def test_a_topic_that_is_not_compacted_is_told_once(
    topics: Topics, open_writer: Writers, caplog: pytest.LogCaptureFixture
) -> None:
    name = topics.create(cleanup_policy="compact,delete")
    writer = open_writer(name)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            writer.put("k", {})
    assert [record.name for record in caplog.records].count("compactory.writer") == 1
    assert f"kafka-configs.sh --alter --topic {name} --add-config cleanup.policy=compact" in caplog.text


def test_an_unreachable_broker_is_a_clear_error() -> None:
    writer = DirectoryWriter(NOWHERE, Directory("d", writable=True), timeout=0.5)
    with pytest.raises(Unreachable, match=r"Kafka at 127\.0\.0\.1:1 was not reached"):
        writer.put("k", {})
    writer.close()


def test_closing(topics: Topics, open_writer: Writers) -> None:
    """Idempotent, complete on return; what is written afterwards is refused; a dropped writer leaves no thread."""
    name = topics.create()
    with open_writer(name) as writer:
        assert writer_threads()
    writer.close()
    assert not writer_threads()
    with pytest.raises(CompactoryError, match="the writer is closed"):
        writer.put("k", {})
    never = open_writer(name)
    never.close()
    with pytest.raises(CompactoryError, match="the writer is closed"):
        never.start()
    dropped = DirectoryWriter(topics.address, Directory(name, writable=True))
    dropped.put("k", {})
    del dropped
    gc.collect()
    eventually(lambda: not writer_threads())


def test_a_writer_made_before_a_fork_is_refused_in_the_child(topics: Topics, open_writer: Writers) -> None:
    """And the child's end does not wait for threads that it never had, nor disturb the parent."""
    name = topics.create()
    fresh, used = open_writer(name), open_writer(name)
    used.put("a", {})

    def child() -> int:
        nonlocal used
        for writer in (fresh, used):
            with pytest.raises(CompactoryError, match="Make it in each worker"):
                writer.put("b", {})
        del used, writer
        gc.collect()
        with DirectoryWriter(topics.address, Directory(name, writable=True)) as own:
            return own.put("c", {}).offset

    assert forked(child) == 1
    assert used.put("d", {}).offset == 2


def test_values_are_in_no_log_and_no_error(
    topics: Topics, open_writer: Writers, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "geheim-7000"
    writer = open_writer(topics.create(max_message_bytes="3000"))
    texts = []
    with caplog.at_level(logging.DEBUG):
        writer.put("k", {"pin": secret})
        for value in ({"pin": (secret,)}, {"pin": secret * 500}, [secret], {secret: object()}):
            with pytest.raises(WriteRefused) as caught:
                writer.put("k", value)
            texts.append(f"{caught.value} {caught.value!r}")
        texts.append(repr(writer))
    assert secret not in "".join(texts) + caplog.text


def test_errors_pickle() -> None:
    cause = Unreachable("Kafka", "away")
    token = Token("t", 0, 1, "id")
    failed = WriteFailed("x", topic="t", written={"a": token}, not_written=["b"], unknown=["c"], cause=cause)
    again = pickle.loads(pickle.dumps(failed))
    assert (str(again), again.topic, again.written, again.not_written, again.unknown) == (
        "x", "t", {"a": token}, ("b",), ("c",),
    )  # fmt: skip
    assert again.retryable
    assert isinstance(again.cause, Unreachable)
    refused = pickle.loads(pickle.dumps(WriteRefused(["one", "two"])))
    assert refused.problems == ["one", "two"]
    assert isinstance(refused, ValueError)
    assert str(refused) == "- one\n- two"


def test_a_small_topic_takes_many_small_records_and_no_large_one(topics: Topics, open_writer: Writers) -> None:
    """The client would fill a batch beyond what the topic takes, and the broker refuse all of it."""
    writer = open_writer(topics.create(max_message_bytes="2000"))
    random = os.urandom(30).hex()
    tokens = writer.put_many([(f"k{number}", {"random": f"{random}{number}"}) for number in range(2000)])
    assert tokens[-1].offset == 1999
    with pytest.raises(WriteRefused, match="takes 3109 bytes, 2000 are the most"):
        writer.put_many({"small": {}, "large": {"x": "y" * 3000}})
    assert writer.put("k", {}).offset == 2000


def test_a_small_queue_is_waited_for(topics: Topics) -> None:
    name = topics.create()
    properties = {"bootstrap.servers": topics.address, "queue.buffering.max.messages": 50}
    with DirectoryWriter(properties, Directory(name, writable=True)) as writer:
        tokens = writer.put_many([("k", {"n": number}) for number in range(3000)])
    assert [token.offset for token in tokens] == list(range(3000))
