"""Batches: all operations are written or none, together with the writer's cursor."""

from __future__ import annotations

from typing import Any

import pytest

from compactory import (
    BatchRefused,
    Conflict,
    CursorConflict,
    Directory,
    EntryMissing,
    PreconditionFailed,
    WriteRefused,
)
from compactory.write.operation import OperationBatch
from compactory_mastered import MasteredWriter, Operation, WriterCursor, Written
from tests.mastered.conftest import Start, log_of, tenants
from tests.store.topics import Topics


def put(key: str, email: str, **fields: Any) -> Operation:
    return Operation(kind="put", key=key, value={"email": email}, **fields)


def test_a_batch_is_written_whole_with_all_kinds_of_operations(kafka: str, topic: str, start: Start) -> None:
    """Guarantee 17: a batch that was answered is in the log, whole, once."""
    writer = start(tenants(topic))
    first = writer.put("t1", {"email": "a@x", "secret": "s"})
    writer.put("t2", {"email": "b@x"})
    existing = writer.post({"email": "e@x"})
    written = writer.write_batch(
        [
            Operation(kind="patch", key="t1", value={"email": "c@x"}, if_match=(first.etag,)),
            Operation(kind="delete", key="t2"),
            put("t3", "a@x"),  # free since the first operation
            Operation(kind="post", value={"email": "d@x"}),
            Operation(kind="post", value={"email": "e@x"}),
        ]
    )
    assert [result.status for result in written.results] == ["replaced", "deleted", "created", "created", "created"]
    assert [result.repeated for result in written.results] == [False, False, False, False, True]
    assert written.results[4].etag == existing.etag
    assert (written.cursor, written.repeated) == (None, False)
    writer._store.wait_for(*written.tokens)
    entries = writer._store["tenants"]
    assert {key: entries[key]["email"] for key in entries} == {
        "t1": "c@x",
        "t3": "a@x",
        written.results[3].key: "d@x",
        existing.key: "e@x",
    }
    assert len(log_of(kafka, topic)) == 7


def test_one_refused_operation_refuses_the_batch_and_leaves_no_trace(
    kafka: str, topics: Topics, topic: str, start: Start
) -> None:
    acquirers = topics.create()
    topics.produce(acquirers, ("7", "{}"))
    directory = tenants(topic, references={"acquirer": "acquirers"})
    writer = start(directory, Directory("acquirers", topic=acquirers))
    first = writer.put("t1", {"email": "a@x"})
    refused_operations: list[tuple[Operation, type[Exception]]] = [
        (put("t9", "a@x"), Conflict),
        (put("t9", "new@x"), Conflict),  # of the batch's first operation
        (Operation(kind="put", key="t9", value={"email": "f@x", "acquirer": "8"}), Conflict),
        (Operation(kind="put", key="t9", value={}), WriteRefused),
        (Operation(kind="put", key="t9", value={"email": "x" * 1_000_000}), WriteRefused),
        (Operation(kind="post", value={"name": "none"}), WriteRefused),
        (Operation(kind="patch", key="t9", value={}), EntryMissing),
        (put("t1", "f@x", if_match=("another",)), PreconditionFailed),
        (put("t2", "f@x"), WriteRefused),  # the key of the first operation
    ]
    for operation, error in refused_operations:
        operations = [put("t2", "new@x"), put("t3", "b@x"), operation]
        with pytest.raises(BatchRefused) as refused:
            writer.write_batch(operations, cursor=WriterCursor(next="1"), idempotency_key="k")
        assert (refused.value.index, refused.value.key) == (2, operation.key)
        assert type(refused.value.error) is error
        assert str(refused.value).startswith("operation 2 of the batch")
    assert len(log_of(kafka, topic)) == 1
    # A refused batch reserves no unique value, key, cursor or Idempotency-Key.
    changed = writer.write_batch(
        [put("t1", "b@x", if_match=(first.etag,)), put("t4", "new@x"), put("t2", "a@x", if_none_match=("*",))],
        cursor=WriterCursor(next="1"),
        idempotency_key="k",
    )
    assert [result.status for result in changed.results] == ["replaced", "created", "created"]


def test_a_refused_batch_restores_the_writes_of_the_same_transaction(topic: str, start: Start) -> None:
    """The store has not read them yet, so only the writer's own state has their keys and unique values."""
    writer = start(tenants(topic))
    batch = OperationBatch(operations=[put("t1", "b@x"), put("t2", "a@x"), Operation(kind="delete", key="t9")])
    valid_batch = OperationBatch(operations=[put("t5", "c@x")])
    operations = [put("t1", "a@x"), batch, put("t3", "a@x"), put("t4", "b@x"), valid_batch]
    results = writer.submit(operations).result(30)
    assert [type(result).__name__ for result in results] == [
        "Written", "BatchRefused", "Conflict", "Written", "WrittenBatch",
    ]  # fmt: skip
    assert writer.put("t1", {"email": "a@x", "n": 1}).status == "replaced"


def test_the_cursor_is_stored_with_its_batch_and_survives_owners_and_restarts(
    kafka: str, topic: str, start: Start
) -> None:
    """Guarantee 17: a feed that was interrupted goes on after its last batch."""
    writer, other = start(tenants(topic)), start(tenants(topic))
    assert writer.cursor() is None

    def write(chosen: MasteredWriter, number: int, expected: str | None, name: str = "default") -> None:
        cursor = WriterCursor(name=name, expected=expected, next=str(number))
        written = chosen.write_batch([put(f"{name}{number}", f"{name}{number}@x")], cursor=cursor)
        assert written.cursor == str(number)

    write(writer, 1, None)
    write(writer, 2, "1")
    write(writer, 1, None, name="feed-b")
    for process in (writer, other, start(tenants(topic))):
        for expected in (None, "1", "3"):
            with pytest.raises(CursorConflict) as refused:
                write(process, 3, expected)
            assert refused.value.cursor == "2"
    write(other, 3, "2")
    restarted = start(tenants(topic))
    assert (restarted.cursor(), restarted.cursor("feed-b"), restarted.cursor("feed-c")) == ("3", "1", None)
    cursors = [(key, value) for key, value in log_of(kafka, f"{topic}-writes") if key.startswith("cursor:")]
    assert cursors == [
        ("cursor:default", {"cursor": "1"}),
        ("cursor:default", {"cursor": "2"}),
        ("cursor:feed-b", {"cursor": "1"}),
        ("cursor:default", {"cursor": "3"}),
    ]
    assert len(log_of(kafka, topic)) == 4


def test_a_cursor_does_not_expire_as_answers_do(topic: str, start: Start) -> None:
    writer = start(tenants(topic, remember=0.001, remember_at_most=1))
    writer.write_batch([put("t1", "a@x")], cursor=WriterCursor(next="1"), idempotency_key="k1")
    for number in range(3):
        writer.put("t2", {"email": "b@x"}, idempotency_key=f"k{number + 2}")
    written = start(tenants(topic)).write_batch([put("t1", "c@x")], cursor=WriterCursor(expected="1", next=""))
    assert written.cursor == ""


def test_a_repeated_batch_gets_the_first_answer_from_any_process(kafka: str, topic: str, start: Start) -> None:
    """Guarantee 17: a repeat with its Idempotency-Key writes nothing, in another process and after a restart."""
    writer = start(tenants(topic))
    operations = [put("t1", "a@x"), Operation(kind="post", value={"email": "b@x"})]
    cursor = WriterCursor(expected=None, next="1")
    first = writer.write_batch(operations, cursor=cursor, idempotency_key="k")
    writer.write_batch([put("t2", "c@x")], cursor=WriterCursor(expected="1", next="2"))
    restarted = start(tenants(topic))
    for process in (writer, restarted):
        repeat = process.write_batch(operations, cursor=cursor, idempotency_key="k")
        assert (repeat.repeated, repeat.cursor) == (True, "1")
        assert [(r.key, r.etag, r.status, r.repeated) for r in repeat.results] == [
            (r.key, r.etag, r.status, True) for r in first.results
        ]
        with pytest.raises(WriteRefused, match="another request"):
            process.write_batch(operations[:1], cursor=cursor, idempotency_key="k")
        with pytest.raises(WriteRefused, match="another request"):
            process.put("t1", {"email": "a@x"}, idempotency_key="k")
    batches = [OperationBatch(operations=[put("t7", "g@x")], idempotency_key="k7") for _ in range(2)]
    results = restarted.submit([*batches, put("t8", "h@x")]).result(30)  # in one transaction
    assert [result.repeated for result in results[:2]] == [False, True]
    assert results[0].results[0].etag == results[1].results[0].etag
    assert len(log_of(kafka, topic)) == 5


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"operations": []}, "1 to 100 operations"),
        ({"operations": [put(f"t{n}", f"{n}@x") for n in range(101)]}, "1 to 100 operations"),
        ({"operations": [put("t1", "a@x", idempotency_key="k")]}, "give it to the batch"),
        ({"cursor": WriterCursor(next="x" * 4097)}, "4097 bytes"),
        ({"cursor": WriterCursor(next="1", expected="\ud800")}, "expected has half of a surrogate pair"),
        ({"cursor": WriterCursor(next=5)}, "next must be text"),  # type: ignore[arg-type]
        ({"cursor": WriterCursor(name="a/b", next="1")}, "name must be"),
        ({"cursor": WriterCursor(name=7, next="1")}, "name must be"),  # type: ignore[arg-type]
        ({"idempotency_key": ""}, "Idempotency-Key"),
    ],
)
def test_a_malformed_batch_is_refused_alone(
    kafka: str, topic: str, start: Start, options: dict[str, Any], problem: str
) -> None:
    writer = start(tenants(topic))
    batch = OperationBatch(**{"operations": [put("t1", "a@x")]} | options)
    refused, written = writer.submit([batch, put("t2", "b@x")]).result(30)
    assert isinstance(refused, WriteRefused)
    assert problem in str(refused)
    assert isinstance(written, Written)
    assert len(log_of(kafka, topic)) == 1
