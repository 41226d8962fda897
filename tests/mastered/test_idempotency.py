"""Requests with an Idempotency-Key: their repeats get the first answer, until it is forgotten."""

from __future__ import annotations

import time
from typing import Any

import pytest

from compactory import WriteRefused
from compactory_mastered import MasteredWriter, Operation, Written
from tests.mastered.conftest import Start, log_of, tenants


def test_a_repeat_gets_the_first_answer_from_any_process(kafka: str, topic: str, start: Start) -> None:
    """Guarantee 17: a repeat with its Idempotency-Key writes nothing, in another process and after a restart."""
    first_writer, second_writer = start(tenants(topic)), start(tenants(topic))
    first = first_writer.put("t1", {"email": "a@x"}, idempotency_key="k")
    first_writer.put("t1", {"email": "b@x"})

    def repeat_first(writer: MasteredWriter) -> Written:
        return writer.put("t1", {"email": "a@x"}, idempotency_key="k")

    for writer in (first_writer, second_writer, start(tenants(topic))):
        repeat = repeat_first(writer)
        assert (repeat.etag, repeat.content, repeat.status, repeat.repeated) == (
            first.etag,
            first.content,
            "created",
            True,
        )
    with pytest.raises(WriteRefused, match="another request"):
        second_writer.put("t1", {"email": "c@x"}, idempotency_key="k")
    assert len(log_of(kafka, topic)) == 2


def test_repeats_within_one_transaction_are_one_write(kafka: str, topic: str, start: Start) -> None:
    writer = start(tenants(topic))
    operation = Operation(kind="put", key="t1", value={"email": "a@x"}, idempotency_key="k")
    futures = [writer.submit([operation, operation]) for _ in range(10)]
    etags = {result.etag for future in futures for result in future.result(30) if isinstance(result, Written)}
    assert len(etags) == 1
    assert len(log_of(kafka, topic)) == 1


def test_a_value_that_can_not_be_compared_with_the_first_one_is_refused_alone(topic: str, start: Start) -> None:
    writer = start(tenants(topic))
    writer.put("t1", {"email": "a@x"}, idempotency_key="k")
    deep: dict[str, Any] = {}
    for _ in range(500):  # more than is written, less than is read
        deep = {"email": deep}
    repeat = Operation(kind="put", key="t1", value=deep, idempotency_key="k")
    valid = Operation(kind="put", key="t2", value={"email": "b@x"})
    refused, written = writer.submit([repeat, valid]).result(30)
    assert isinstance(refused, WriteRefused)
    assert isinstance(written, Written)


def test_the_answer_to_a_post_of_an_entry_that_is_there_is_kept_too(kafka: str, topic: str, start: Start) -> None:
    writer = start(tenants(topic))
    first = writer.post({"email": "a@x"})
    assert writer.post({"email": "a@x"}, idempotency_key="k").etag == first.etag
    writer.put(first.key, {"email": "a@x", "name": "changed"})
    repeat = start(tenants(topic)).post({"email": "a@x"}, idempotency_key="k")
    assert (repeat.etag, repeat.content, repeat.status, repeat.repeated) == (first.etag, first.content, "created", True)
    with pytest.raises(WriteRefused, match="another request"):
        writer.post({"email": "b@x"}, idempotency_key="k")
    assert len(log_of(kafka, topic)) == 2


def test_answers_are_forgotten_in_time_and_by_number(kafka: str, topic: str, start: Start) -> None:
    writer = start(tenants(topic, remember_at_most=3))
    for number in range(6):
        writer.put("t1", {"email": "a@x", "n": number}, idempotency_key=f"k{number}")
    owner = writer._owner
    assert owner is not None
    assert len(owner.answers._answers) <= 3
    forgotten = {key for key, value in log_of(kafka, f"{topic}-writes") if value is None}
    assert {"answer:k0", "answer:k1"} <= forgotten


def test_an_answer_is_forgotten_by_age(kafka: str, topic: str, start: Start) -> None:
    writer = start(tenants(topic, remember=0.2))
    first = writer.put("t1", {"email": "a@x"}, idempotency_key="k0")
    deadline, repeat = time.monotonic() + 20, first
    while repeat.token == first.token and time.monotonic() < deadline:
        writer.put("t2", {"email": "b@x"})  # each write forgets expired answers
        repeat = writer.put("t1", {"email": "a@x"}, idempotency_key="k0")
    assert (repeat.repeated, repeat.status) == (False, "replaced")
    assert ("answer:k0", None) in log_of(kafka, f"{topic}-writes")
    assert writer._owner is not None
    assert len(writer._owner.answers._answers) == 1


def test_answers_are_bounded_in_bytes_also_after_a_restart(kafka: str, topic: str, start: Start) -> None:
    directory = tenants(topic, remember_bytes=1 << 20)

    def remembered(writer: MasteredWriter) -> tuple[list[bytes], int]:
        assert writer._owner is not None
        answers = writer._owner.answers._answers
        return list(answers), sum(len(name) + len(value) for name, (_, value) in answers.items())

    writer = start(directory)
    for number in range(6):
        value = {"email": "a@x", "n": number, "text": "x" * 300_000}
        writer.put("t1", value, idempotency_key=f"k{number}")
    assert remembered(writer)[0] == [b"answer:k3", b"answer:k4", b"answer:k5"]
    assert remembered(writer)[1] <= 1 << 20
    restarted = start(directory)
    assert restarted.put("t1", value, idempotency_key="k5").repeated
    assert remembered(restarted) == remembered(writer)
    assert ("answer:k0", None) in log_of(kafka, f"{topic}-writes")


def test_more_answers_than_are_kept_may_come_in_one_transaction(topic: str, start: Start) -> None:
    writer = start(tenants(topic, unique=(), remember_at_most=10))
    operations = [Operation(kind="put", key="t1", value={"email": "a"}, idempotency_key=str(n)) for n in range(1500)]
    for _ in range(2):
        writer.submit(operations).result(30)
        assert writer._owner is not None
        assert len(writer._owner.answers._answers) == 10


def test_an_idempotency_key_that_fits_into_no_record_is_refused_alone(topic: str, start: Start) -> None:
    writer = start(tenants(topic))
    keys = ("k" * 256, "", "\ud800", "k" * 255)
    operations = [Operation(kind="put", key=f"t{n}", value={"email": str(n)}, idempotency_key=key)
                  for n, key in enumerate(keys)]  # fmt: skip
    *refused, written = writer.submit(operations).result(30)
    assert [type(result) for result in refused] == [WriteRefused] * 3
    assert isinstance(written, Written)
