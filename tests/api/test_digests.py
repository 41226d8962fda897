"""GET /v1/directories/{directory}/digest: what a store holds, at exact positions, while it goes on answering."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from compactory import Directory, Index, RocksDB
from compactory.read.digest import Digester, range_of, record_digest
from compactory_api.http.access import Access, Tokens
from compactory_api.routes import digests
from tests.api.serving import Serving
from tests.store.topics import Topics, eventually, send

Serve = Callable[..., Serving]

READ = "read-me.0123456789"


def digest(serving: Serving, name: str, **options: Any) -> Any:
    answer = serving.ask(f"/v1/directories/{name}/digest", **options)
    assert answer.status == 200, answer
    assert answer.headers["cache-control"] == "no-store"
    return answer.json


def listed(serving: Serving, name: str, ranges: str = "0-255", query: str = "") -> tuple[Any, list[Any]]:
    """The first line and the records; the last line has to say how many there are."""
    answer = serving.ask(f"/v1/directories/{name}/digest/{ranges}{query}")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    first, *records, last = map(json.loads, answer.body.splitlines())
    assert last == {"records": len(records)}
    return first, records


def digested(records: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    digester = Digester()
    for key, value in records:
        digester.add(key.encode(), value.encode())
    return [{"count": part.count, "digest": str(part)} for part in digester.result().ranges]


@pytest.mark.parametrize("on_disk", [False, True])
def test_it_is_of_what_lives_by_topic_key(serve: Serve, topics: Topics, tmp_path: Path, on_disk: bool) -> None:
    """Deleted, inactive and bad ones are left out; two topic keys with one lookup key are both there."""
    topic = topics.create(2)
    rows = [(f"T{n}", json.dumps({"id": f"K{n // 2}", "on": n % 3 > 0, "n": "é\n"})) for n in range(100)]
    topics.produce(topic, *rows[:50])
    topics.produce(topic, *rows[50:], partition=1)
    topics.produce(topic, ("T1", None), ("T2", "{"), ("T100", "{"), (b"\xff", "{}"), ("T4", '{"id": {}}'))
    directory = Directory("d", topic=topic, key="id", active="on", indexes=[Index("n")])
    backend = RocksDB(tmp_path / "store") if on_disk else None
    serving = serve(directory, **({"backend": backend} if backend else {}))
    living = [(key, value) for key, value in rows if json.loads(value)["on"] and key not in {"T1", "T2", "T4"}]
    document = digest(serving, "d")
    assert document["ranges"] == digested(living)
    assert (document["count"], document["bad"]) == (len(living), 4)
    assert document["positions"] == {"0": 55, "1": 50}
    assert (document["directory"], document["topic"], document["version"]) == ("d", topic, 1)
    assert document["topic_id"] == serving.store.topic_id(topic)
    assert document["definition"] == {
        "key": "id", "active": "on", "envelope": "none", "decode": "object", "indexes": [["n"]],
    }  # fmt: skip
    first, records = listed(serving, "d")
    assert first == {name: document[name] for name in first}
    bad = [record for record in records if record["bad"]]
    assert {record.get("key") for record in bad} == {"T2", "T100", "T4", None}
    assert [record["key_base64"] for record in bad if "key" not in record] == [base64.b64encode(b"\xff").decode()]
    assert {record["key"]: record["digest"] for record in records if not record["bad"]} == {
        key: record_digest(key.encode(), value.encode()).hex() for key, value in living
    }


def test_records_of_ranges_with_their_values(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, *((f"T{n}", f'{{"n": {n}}}') for n in range(3000)), ("raw", b'"\xff"'))
    serving = serve(Directory("d", topic=topic, decode=bytes))
    _, some = listed(serving, "d", "3,200-202", "?values=true")
    ranges = {3, 200, 201, 202}
    expected = {f"T{n}": f'{{"n": {n}}}' for n in range(3000) if range_of(f"T{n}".encode()) in ranges}
    assert {record["key"]: record["value"] for record in some if "value" in record} == expected
    _, [raw] = (
        listed(serving, "d", str(range_of(b"raw")), "?values=true")[0],
        [record for record in listed(serving, "d", "0-255", "?values=true")[1] if record["key"] == "raw"],
    )
    assert base64.b64decode(raw["value_base64"]) == b'"\xff"'
    assert (raw["partition"], raw["offset"], raw["bad"]) == (0, 3000, False)
    assert raw["timestamp_ms"] > 0
    assert "value" not in listed(serving, "d", "3")[1][0]


def test_it_is_kept_until_something_changes(serve: Serve, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    decodable = set[bytes]()

    def decode(value: bytes) -> bytes:
        if value == b"later" and value not in decodable:
            raise ValueError
        return value

    topic = topics.create()
    topics.produce(topic, ("a", "1"), ("b", "later"))
    serving = serve(Directory("d", topic=topic, decode=decode))
    counted: list[int] = []
    honest = digests.DirectorySnapshot.digest
    monkeypatch.setattr(
        digests.DirectorySnapshot, "digest", lambda self, pause: counted.append(1) or honest(self, pause)
    )
    first = digest(serving, "d")
    assert {**digest(serving, "d"), "seconds": first["seconds"]} == first
    assert len(counted) == 1
    topics.abort(topic, ("a", "2"))  # positions move on, nothing changes
    serving.store.barrier()
    assert digest(serving, "d")["ranges"] == first["ranges"] == digested([("a", "1")])
    topics.produce(topic, ("a", "2"))
    serving.store.barrier()
    assert digest(serving, "d")["ranges"] == digested([("a", "2")])
    decodable.add(b"later")
    serving.store.retry()
    second = digest(serving, "d")
    assert (second["ranges"], second["bad"]) == (digested([("a", "2"), ("b", "later")]), 0)
    assert len(counted) == 3


def test_a_skipped_record_counts_no_more_as_bad(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", "{}"), ("a", "{"))
    serving = serve(topic)
    assert (digest(serving, topic)["count"], digest(serving, topic)["bad"]) == (0, 1)
    serving.store.skip(*serving.store.quarantine())
    assert (digest(serving, topic)["count"], digest(serving, topic)["bad"]) == (1, 0)


@pytest.mark.parametrize(
    "path", ["digest/256", "digest/5-4", "digest/x", "digest/1,", "digest/-1", "digest/0?values=what"]
)
def test_what_is_no_range(serve: Serve, topics: Topics, path: str) -> None:
    topic = topics.create()
    serving = serve(topic)
    refused = serving.ask(f"/v1/directories/{topic}/{path}")
    assert (refused.status, refused.problem) == (400, "bad-request")


def test_who_may_ask_and_when(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", "{}"))
    serving = serve(topic, access=Access(Tokens(read=READ)))
    for path in (f"/v1/directories/{topic}/digest", f"/v1/directories/{topic}/digest/7"):
        assert serving.ask(path).status == 401
        assert serving.ask(path, headers={"Authorization": f"Bearer {READ}"}).status == 200
    unknown = serving.ask("/v1/directories/nobody/digest", headers={"Authorization": f"Bearer {READ}"})
    assert (unknown.status, unknown.problem) == (404, "unknown-directory")
    with topics.transaction() as producer:
        send(producer, topic, [("b", "{}")])
        loading = serve(topic, ready=False)
        for path in (f"/v1/directories/{topic}/digest", f"/v1/directories/{topic}/digest/7"):
            early = loading.ask(path)
            assert (early.status, early.problem, early.headers["retry-after"]) == (503, "not-ready", "1")
        producer.abort_transaction(10)


def test_lookups_go_on_and_askers_share_one_answer(
    serve: Serve, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 5: a digest that is held up holds up no lookup, and is computed once for all who ask meanwhile."""
    topic = topics.create()
    topics.produce(topic, *((f"T{n}", "{}") for n in range(1000)))
    serving = serve(topic)
    reached, released, begun = threading.Event(), threading.Event(), list[int]()

    class Held:
        def __init__(self, _is_stopping: Callable[[], bool]) -> None:
            begun.append(1)

        def __call__(self) -> None:
            reached.set()
            assert released.wait(30)

    monkeypatch.setattr(digests, "_Pause", Held)
    try:
        answer_waits = [serving.meanwhile(lambda: serving.ask(f"/v1/directories/{topic}/digest")) for _ in range(5)]
        assert reached.wait(30)
        assert all(serving.entry(topic, f"T{n}").status == 200 for n in range(20))
        topics.produce(topic, ("T1", None))
        serving.store.barrier()
        assert serving.entry(topic, "T1").status == 404
    finally:
        released.set()
    answers = [wait().json for wait in answer_waits]
    assert {answer["count"] for answer in answers} == {1000}, "of the moment when it began"
    assert all(answer["positions"] == {"0": 1000} for answer in answers)
    assert len(begun) == 1
    assert digest(serving, topic)["count"] == 999


def test_listings_are_limited_and_end_with_their_client(
    serve: Serve, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that goes away, or does not read, keeps neither a place nor memory for long."""
    topic = topics.create()
    topics.produce(topic, *((f"T{n}", json.dumps({"n": "x" * 2000})) for n in range(3000)))
    serving = serve(topic)
    path = f"/v1/directories/{topic}/digest/0-255?values=true"
    sockets = []
    try:
        for _ in range(4):
            connection = socket.create_connection(("127.0.0.1", serving.port), timeout=10)
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            sockets.append(connection)
        refused = serving.ask(path)
        assert (refused.status, refused.problem) == (503, "not-ready")
        assert "listings" in refused.json["detail"]
    finally:
        for connection in sockets:
            connection.close()

    eventually(lambda: serving.ask(path).status == 200)


def test_a_client_that_does_not_read_loses_its_place(
    serve: Serve, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create()
    topics.produce(topic, *((f"T{n}", json.dumps({"n": "x" * 20_000})) for n in range(1000)))
    serving = serve(topic)
    path = f"/v1/directories/{topic}/digest/0-255?values=true"
    monkeypatch.setattr(digests, "_LISTING_SECONDS", 2.0)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", serving.port), timeout=10))
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert serving.ask(path).status == 503
        eventually(lambda: serving.ask(f"/v1/directories/{topic}/digest/7").status == 200)


def test_a_digest_does_not_hold_up_the_end(serve: Serve, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop waits for threads before the store is closed: millions of records would take minutes."""
    topic = topics.create()
    topics.produce(topic, *((f"T{n}", "{}") for n in range(2000)))
    serving = serve(topic)
    begun, paused = threading.Event(), threading.Event()

    class Slow(digests._Pause):
        def __call__(self) -> None:
            begun.set()
            paused.wait(0.5 if not serving.server.app.health.stopping else 5.0)
            super().__call__()

    monkeypatch.setattr(digests, "_Pause", Slow)
    wait_for_answer = serving.meanwhile(lambda: serving.ask(f"/v1/directories/{topic}/digest"))
    assert begun.wait(30)
    began = time.monotonic()
    serving.stop()
    assert time.monotonic() - began < 9
    assert (wait_for_answer().status, wait_for_answer().problem) == (503, "not-ready")
