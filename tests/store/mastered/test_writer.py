"""MasteredWriter against a real Kafka: rules, conditions, repeats, owners."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from pydantic import BaseModel, ConfigDict, PositiveInt

from compactory import (
    ConfigError,
    Conflict,
    Directory,
    EntryMissing,
    GlobalStore,
    Index,
    MasteredWriter,
    PreconditionFailed,
    WriteRefused,
    WriteRules,
    Written,
)
from compactory.errors import LeaseLost
from compactory.kafka.client import Kafka
from compactory.mastered.fenced_producer import FencedProducer
from compactory.mastered.writer import start_writers
from tests.store.topics import Topics

SCHEMA = {"type": "object", "required": ["email"], "properties": {"email": {"type": "string"}}}


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


def tenants(topic: str, **rules: Any) -> Directory[dict[str, Any]]:
    given = {"schema": SCHEMA, "key_from": ["email"], "unique": [["email"]], "internal": ["secret"]} | rules
    return Directory("tenants", topic=topic, indexes=[Index("email", unique=True)], rules=WriteRules(**given))


Start = Callable[..., MasteredWriter]


@pytest.fixture
def start(kafka: str) -> Iterator[Start]:
    """Starts a writer over a store of its own, as a process would."""
    with ExitStack() as stack:

        def started(*directories: Directory[Any]) -> MasteredWriter:
            store = stack.enter_context(GlobalStore(kafka, directories, unusable_directory="serve"))
            return stack.enter_context(MasteredWriter(store, directories[0]))

        yield started


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create(partitions=2)


def log_of(kafka: str, topic: str) -> list[tuple[str, Any]]:
    """Keys and values of the committed records of a topic."""
    return [(key, value) for key, value, _ in placed_log_of(kafka, topic)]


def placed_log_of(kafka: str, topic: str) -> list[tuple[str, Any, int]]:
    """The same with their offsets."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "test", "auto.offset.reset": "earliest",
                         "enable.auto.commit": False, "enable.partition.eof": True})  # fmt: skip
    consumer.subscribe([topic])
    found, ended = list[tuple[str, Any, int]](), set[int]()
    partitions = consumer.list_topics(topic).topics[topic].partitions
    while len(ended) < len(partitions):
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended.add(message.partition())
        else:
            value = message.value()
            found.append((message.key().decode(), None if value is None else json.loads(value), message.offset()))
    consumer.close()
    return found


def test_each_kind_of_write_answers_with_what_is_stored(kafka: str, topic: str, start: Start) -> None:
    """Guarantee 17: a write that was answered is in the log, whole, once."""
    writer = start(tenants(topic))
    made = writer.put("t1", {"email": "a@x", "secret": "s", "name": "A"})
    assert (made.status, json.loads(made.content or b"")) == ("created", {"email": "a@x", "name": "A"})
    kept = writer.put("t1", {"email": "a@x", "name": "B"})
    assert kept.status == "replaced"
    patched = writer.patch("t1", {"name": None, "city": {"zip": 1}})
    assert json.loads(patched.content or b"") == {"email": "a@x", "city": {"zip": 1}}
    writer._store.wait_for(patched.token)
    assert writer._store["tenants"]["t1"] == {"email": "a@x", "city": {"zip": 1}, "secret": "s"}
    assert writer.delete("t1").content is None
    assert [value for _, value in log_of(kafka, topic)] == [
        {"email": "a@x", "secret": "s", "name": "A"},
        {"email": "a@x", "name": "B", "secret": "s"},
        {"email": "a@x", "secret": "s", "city": {"zip": 1}},
        None,
    ]


def test_a_derived_key_makes_the_repeat_of_a_post_harmless(topic: str, start: Start, kafka: str) -> None:
    writer = start(tenants(topic))
    first = writer.post({"email": "a@x"})
    again = writer.post({"email": "a@x"})
    assert (again.key, again.etag, again.repeated) == (first.key, first.etag, True)
    with pytest.raises(Conflict, match="another value"):
        writer.post({"email": "a@x", "name": "other"})
    assert len(log_of(kafka, topic)) == 1


def test_conditions_name_the_record_that_they_want(topic: str, start: Start) -> None:
    writer = start(tenants(topic))
    first = writer.put("t1", {"email": "a@x"}, if_none_match=("*",))
    with pytest.raises(PreconditionFailed):
        writer.put("t1", {"email": "a@x"}, if_none_match=("*",))
    second = writer.put("t1", {"email": "a@x", "n": 2}, if_match=(first.etag,))
    with pytest.raises(PreconditionFailed):
        writer.delete("t1", if_match=(first.etag,))
    writer.delete("t1", if_match=(second.etag,))
    with pytest.raises(PreconditionFailed):
        writer.put("t1", {"email": "a@x"}, if_match=("*",))
    with pytest.raises(EntryMissing):
        writer.patch("t1", {})


def test_values_and_keys_that_break_a_rule_are_refused(topics: Topics, topic: str, start: Start) -> None:
    acquirers = topics.create()
    topics.produce(acquirers, ("7", "{}"))
    directory = tenants(topic, references={"acquirer": "acquirers"}, key_pattern="t[0-9]+")
    writer = start(directory, Directory("acquirers", topic=acquirers))
    with pytest.raises(WriteRefused) as refused:
        writer.put("t1", {"email": 5})
    assert refused.value.problems == ['email: the value is not of type "string"']
    with pytest.raises(WriteRefused, match="key_pattern"):
        writer.put("x", {"email": "a@x"})
    with pytest.raises(WriteRefused, match="JSON object"):
        writer.put("t1", [])  # type: ignore[arg-type]
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(WriteRefused, match="nested"):
        writer.put("t1", {"email": "a@x", "deep": deep})
    with pytest.raises(Conflict, match="'acquirers' has no such entry"):
        writer.put("t1", {"email": "a@x", "acquirer": 8})
    writer.put("t1", {"email": "a@x", "acquirer": 7})
    with pytest.raises(Conflict, match="this value of email"):
        writer.put("t2", {"email": "a@x"})
    writer.put("t1", {"email": "b@x"})
    writer.put("t2", {"email": "a@x"})


class Tenant(BaseModel):
    model_config = ConfigDict(extra="forbid")

    email: str
    seats: PositiveInt = 1


def test_a_pydantic_model_checks_values_and_no_value_is_told(topic: str, start: Start) -> None:
    writer = start(Directory("tenants", topic=topic, decode=Tenant, rules=WriteRules()))
    with pytest.raises(WriteRefused) as refused:
        writer.put("t1", {"email": "a@x", "seats": -17, "colour": "secret"})
    assert sorted(problem.partition(":")[0] for problem in refused.value.problems) == ["colour", "seats"]
    assert not {"17", "secret"} & set(str(refused.value).replace("'", " ").split())
    assert writer.put("t1", {"email": "a@x"}).content == b'{"email":"a@x"}'
    assert writer.patch("t1", {"seats": 3}).status == "replaced"


def test_a_repeat_gets_the_first_answer_from_any_process(kafka: str, topic: str, start: Start) -> None:
    """Guarantee 17: a repeat with its Idempotency-Key writes nothing, in another process and after a restart."""
    one, two = start(tenants(topic)), start(tenants(topic))
    first = one.put("t1", {"email": "a@x"}, idempotency_key="k")
    one.put("t1", {"email": "b@x"})

    def repeated(writer: MasteredWriter) -> Written:
        return writer.put("t1", {"email": "a@x"}, idempotency_key="k")

    for writer in (one, two, start(tenants(topic))):
        again = repeated(writer)
        assert (again.etag, again.content, again.status, again.repeated) == (first.etag, first.content, "created", True)
    with pytest.raises(WriteRefused, match="another request"):
        two.put("t1", {"email": "c@x"}, idempotency_key="k")
    assert len(log_of(kafka, topic)) == 2


class FencedWithin:
    """A producer that is fenced within `flush`: the client then calls back with the exception already set."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def flush(self, _timeout: float) -> None:
        raise SystemError("returned a result with an exception set") from KafkaException(KafkaError(KafkaError._FENCED))


def test_a_fence_is_seen_whatever_the_client_makes_of_it() -> None:
    """Nothing was written then: the write goes to the new owner, and its outcome is not unknown."""
    producer = FencedProducer(Kafka("127.0.0.1:1"), "tenants", 1.0, 1000)
    producer._producer = FencedWithin()  # type: ignore[assignment]
    with pytest.raises(LeaseLost), producer.transaction():
        producer.send([("tenants", b"t1", b"{}")])


def test_repeats_within_one_transaction_are_one_write(kafka: str, topic: str, start: Start) -> None:
    from compactory import Operation, Written

    writer = start(tenants(topic))
    operation = Operation(kind="put", key="t1", value={"email": "a@x"}, idempotency_key="k")
    futures = [writer.submit([operation, operation]) for _ in range(10)]
    etags = {result.etag for future in futures for result in future.result(30) if isinstance(result, Written)}
    assert len(etags) == 1
    assert len(log_of(kafka, topic)) == 1


def test_a_value_that_can_not_be_compared_with_the_first_one_is_refused_alone(topic: str, start: Start) -> None:
    from compactory import Operation, Written

    writer = start(tenants(topic))
    writer.put("t1", {"email": "a@x"}, idempotency_key="k")
    deep: dict[str, Any] = {}
    for _ in range(500):  # more than is written, less than is read
        deep = {"email": deep}
    repeat = Operation(kind="put", key="t1", value=deep, idempotency_key="k")
    other = Operation(kind="put", key="t2", value={"email": "b@x"})
    refused, written = writer.submit([repeat, other]).result(30)
    assert isinstance(refused, WriteRefused)
    assert isinstance(written, Written)


def test_answers_are_forgotten_in_time_and_by_number(kafka: str, topic: str, start: Start) -> None:
    writer = start(tenants(topic, remember_at_most=3))
    for number in range(6):
        writer.put("t1", {"email": "a@x", "n": number}, idempotency_key=f"k{number}")
    owned = writer._owned
    assert owned is not None
    assert len(owned.answers) <= 4
    gone = {key for key, value in log_of(kafka, f"{topic}-writes") if value is None}
    assert {"answer:k0", "answer:k1"} <= gone


def test_an_answer_is_forgotten_by_age(kafka: str, topic: str, start: Start) -> None:
    writer = start(tenants(topic, remember=0.2))
    first = writer.put("t1", {"email": "a@x"}, idempotency_key="k0")
    deadline, again = time.monotonic() + 20, first
    while again.token == first.token and time.monotonic() < deadline:
        writer.put("t2", {"email": "b@x"})  # each write forgets what is outdated by then
        again = writer.put("t1", {"email": "a@x"}, idempotency_key="k0")
    assert (again.repeated, again.status) == (False, "replaced")
    assert ("answer:k0", None) in log_of(kafka, f"{topic}-writes")
    assert writer._owned is not None
    assert len(writer._owned.answers) == 1


def test_bad_rules_are_refused_all_at_once(topics: Topics, kafka: str) -> None:
    with pytest.raises(ConfigError) as refused:
        WriteRules(schema={"type": "nothing"}, key_pattern="(", remember=0)
    assert len(refused.value.problems) == 3
    rules = WriteRules(unique=[["email"]], references={"a": "nowhere"}, outcomes=["gone"])
    store = GlobalStore(kafka, [Directory("tenants", active="on", rules=rules)])
    with pytest.raises(ConfigError) as refused:
        MasteredWriter(store, "tenants")
    assert [problem.split(": ")[1].split(" ")[0] for problem in refused.value.problems] == [
        "a", "unique", "references.a", "outcomes",
    ]  # fmt: skip
    deleting = topics.create(cleanup_policy="compact,delete")
    with GlobalStore(kafka, [tenants(deleting, min_insync_replicas=2)]) as store:
        writer = MasteredWriter(store, "tenants")
        with pytest.raises(ConfigError) as refused:
            start_writers([writer])
        assert len(refused.value.problems) == 2
        writer.close()
