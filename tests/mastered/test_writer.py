"""MasteredWriter against a real Kafka: rules, conditions, owners."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from pydantic import BaseModel, ConfigDict, PositiveInt

from compactory import ConfigError, Conflict, Directory, EntryMissing, GlobalStore, PreconditionFailed, WriteRefused
from compactory.errors import LeaseLost
from compactory.kafka.client import Kafka
from compactory_mastered import MasteredWriter, Operation, WriteRules, Written
from compactory_mastered.fenced_producer import FencedProducer
from compactory_mastered.writer import start_writers
from tests.mastered.conftest import Start, log_of, tenants
from tests.store.topics import Topics


def test_each_kind_of_write_answers_with_what_is_stored(kafka: str, topic: str, start: Start) -> None:
    """Guarantee 17: a write that was answered is in the log, whole, once."""
    writer = start(tenants(topic))
    created = writer.put("t1", {"email": "a@x", "secret": "s", "name": "A"})
    assert (created.status, json.loads(created.content or b"")) == ("created", {"email": "a@x", "name": "A"})
    replaced = writer.put("t1", {"email": "a@x", "name": "B"})
    assert replaced.status == "replaced"
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


def test_records_that_come_while_a_transaction_begins_are_in_it(kafka: str, topic: str) -> None:
    producer = FencedProducer(Kafka(kafka), topic, 20.0, 100_000)
    later = iter([[(b"b", b"2"), (b"a", b"3")]])

    def next_records() -> Sequence[tuple[bytes, bytes]]:
        return next(later, ())

    try:
        producer.open()
        with producer.transaction():
            origins = producer.send(topic, [(b"a", b"1")], next_records)
    finally:
        producer.close()
    assert len(origins) == 3
    assert origins[2] == (origins[0][0], origins[0][1] + (2 if origins[1][0] == origins[0][0] else 1))
    assert sorted(log_of(kafka, topic)) == [("a", 1), ("a", 3), ("b", 2)]


def test_a_derived_key_makes_the_repeat_of_a_post_harmless(topic: str, start: Start, kafka: str) -> None:
    writer = start(tenants(topic))
    first = writer.post({"email": "a@x"})
    repeat = writer.post({"email": "a@x"})
    assert (repeat.key, repeat.etag, repeat.repeated) == (first.key, first.etag, True)
    with pytest.raises(Conflict, match="another value"):
        writer.post({"email": "a@x", "name": "other"})
    assert len(log_of(kafka, topic)) == 1
    double_click = [
        Operation(kind="post", value={"email": "b@x"})
    ] * 2  # in one transaction, as those of a double click
    created, repeated = writer.submit(double_click).result(30)
    assert isinstance(created, Written)
    assert isinstance(repeated, Written)
    assert (repeated.token, repeated.repeated) == (created.token, True)


def test_a_post_whose_key_can_not_be_derived_is_refused_alone(topic: str, start: Start) -> None:
    writer = start(tenants(topic))
    deep: list[Any] = []
    for _ in range(300):  # more than is written, less than is read
        deep = [deep]
    posts = [Operation(kind="post", value={"email": email}) for email in (deep, "\ud800", "a@x")]
    *refused, written = writer.submit(posts).result(30)
    assert [type(error) for error in refused] == [WriteRefused, WriteRefused]
    assert isinstance(written, Written)


def test_conditions_name_the_record_that_they_want(topic: str, start: Start) -> None:
    writer = start(tenants(topic))
    first = writer.put("t1", {"email": "a@x"}, if_none_match=("*",))
    with pytest.raises(PreconditionFailed):
        writer.put("t1", {"email": "a@x"}, if_none_match=("*",))
    second = writer.put("t1", {"email": "a@x", "n": 2}, if_match=(first.etag,))
    with pytest.raises(PreconditionFailed):
        writer.delete("t1", if_match=(first.etag,))
    writer.delete("t1", if_match=(second.etag,))
    with pytest.raises(PreconditionFailed, match="there is no entry"):
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
        producer.send("tenants", [(b"t1", b"{}")])


def test_bad_rules_are_refused_all_at_once(topics: Topics, kafka: str) -> None:
    with pytest.raises(ConfigError) as refused:
        WriteRules(schema={"type": "nothing"}, key_pattern="(", remember=0)
    assert len(refused.value.problems) == 3
    with pytest.raises(ConfigError) as refused:  # one text is a list of letters, and would hide no field
        WriteRules(internal="secret", key_from=[5], outcomes="gone", unique=["email"])  # type: ignore[arg-type]
    assert [problem.split(" ")[0] for problem in refused.value.problems] == [
        "key_from",
        "internal",
        "outcomes",
        "unique",
    ]
    rules = WriteRules(unique=[["email"]], references={"a": "nowhere"}, outcomes=["gone"])
    store = GlobalStore(kafka, [Directory("tenants", key="id", active="on", rules=rules)])
    with pytest.raises(ConfigError) as refused:
        MasteredWriter(store, "tenants")
    assert [problem.split(": ")[1].split(" ")[0] for problem in refused.value.problems] == [
        "a", "a", "unique", "references.a", "outcomes",
    ]  # fmt: skip
    deleting = topics.create(cleanup_policy="compact,delete")
    with GlobalStore(kafka, [tenants(deleting, min_insync_replicas=2)]) as store:
        writer = MasteredWriter(store, "tenants")
        with pytest.raises(ConfigError) as refused:
            start_writers([writer])
        assert len(refused.value.problems) == 2
        writer.close()


def test_the_time_to_check_a_key_grows_with_its_length_only(topic: str, start: Start) -> None:
    writer = start(tenants(topic, key_pattern="([a-z]+)*"))
    started = time.process_time()
    with pytest.raises(WriteRefused, match="key_pattern"):
        writer.put("a" * 5000 + "!", {"email": "a@x"})
    assert time.process_time() - started < 5
    for key in ("abc\n", "xabcx1"):
        with pytest.raises(WriteRefused, match="key_pattern"):
            writer.put(key, {"email": "a@x"})
    for pattern in ("(?=a)b", r"(a)\1", "a)|(b", "("):
        with pytest.raises(ConfigError, match="linear time"):
            WriteRules(key_pattern=pattern)


def test_a_long_key_with_escapes_fails_no_other_write(topic: str, start: Start) -> None:
    """The answer to a keyed write does not have the key, which JSON may write six times as long."""
    writer = start(tenants(topic))
    key = "\x01" * 150_000
    keyed = Operation(kind="put", key=key, value={"email": "a@x", "n": "x" * 700_000}, idempotency_key="k")
    unkeyed = Operation(kind="put", key="t2", value={"email": "b@x"})
    for result in writer.submit([keyed, unkeyed]).result(30):
        assert isinstance(result, Written)
    repeat = writer.write(keyed)
    assert (repeat.key, repeat.repeated) == (key, True)


def test_a_refused_condition_says_what_the_write_may_do(topic: str, start: Start) -> None:
    writer = start(tenants(topic))
    first = writer.put("t1", {"email": "a@x"})
    writer.put("t1", {"email": "b@x"})
    with pytest.raises(PreconditionFailed, match="'t1' exists already: this write may only create it"):
        writer.put("t1", {"email": "a@x"}, if_none_match=("*",))
    with pytest.raises(PreconditionFailed, match="'t1' was changed since it was read: read it again"):
        writer.put("t1", {"email": "a@x"}, if_match=(first.etag,))
    with pytest.raises(PreconditionFailed, match="no entry 't2': this write may only change an entry"):
        writer.put("t2", {"email": "a@x"}, if_match=("*",))


def test_no_write_rounds_a_number_that_another_program_wrote(topics: Topics, topic: str, start: Start) -> None:
    big = '{"email": "a@x", "secret": 18446744073709551617}'
    topics.produce(topic, ("t1", big), ("t2", big.replace("a@x", "b@x")))
    writer = start(tenants(topic))
    for refused in (lambda: writer.patch("t1", {"n": 1}), lambda: writer.put("t1", {"email": "a@x"})):
        with pytest.raises(WriteRefused, match="the number 18446744073709551617, which has more than 64 bits"):
            refused()
    assert writer.put("t1", {"email": "a@x", "secret": "18446744073709551617"}).status == "replaced"
