"""Changes as server-sent events: who watches gets each once and in order, from any id on, or is told why not."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest

from compactory import Directory, Topic, testing
from compactory.watch import change_log
from compactory_api.http import limits
from compactory_api.http.access import Access, Tokens
from compactory_api.routes import changes as streams
from tests.api.serving import Serving
from tests.store.topics import eventually

PATH = "/v1/directories/d/watch"
Watching = Callable[..., "Client"]


class Event:
    def __init__(self, name: str, cursor: str, data: str) -> None:
        self.name, self.cursor, self.data = name, cursor, data

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Client:
    """A client of server-sent events, as far as the standard says what an event is."""

    def __init__(self, port: int, path: str = PATH, **headers: str) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=20)
        self._connection.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        assert self._answer.headers["content-type"].startswith("text/event-stream")
        self.cursor = ""
        self.block()  # from here on it watches

    def block(self) -> Event | None:
        """Return the lines up to the next empty one; None at the end of the stream."""
        name, data = "", []
        while line := self._answer.readline():
            field, _, text = line.rstrip(b"\n").decode().partition(": ")
            if not field:
                return Event(name, self.cursor, "\n".join(data))
            if field == "id":
                self.cursor = text
            elif field == "event":
                name = text
            else:
                assert field == "data", line
                data.append(text)
        return None

    def event(self) -> Event:
        while (block := self.block()) is not None:
            if block.data:
                return block
        raise EOFError

    def changes(self, number: int) -> list[tuple[str, str, Any, Any]]:
        documents = [self.event().json for _ in range(number)]
        return [(document["kind"], document["key"], document["old"], document["new"]) for document in documents]

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@pytest.fixture
def store() -> testing.InProcessStore:
    return testing.store({"d": {"a": {"n": 1}}, Directory("b", decode=bytes): {}}, start=False)


@pytest.fixture
def serving(store: testing.InProcessStore) -> Iterator[Serving]:
    serving = Serving(store, Access())
    serving.wait_ready()
    yield serving
    serving.stop()


@pytest.fixture
def watching(serving: Serving) -> Iterator[Watching]:
    """Makes clients, closed after the test."""
    clients: list[Client] = []

    def watch(path: str = PATH, **headers: str) -> Client:
        clients.append(Client(serving.port, path, **headers))
        return clients[-1]

    yield watch
    for client in clients:
        client.close()


def test_every_client_gets_each_change_with_the_cursor_to_go_on_from(
    store: testing.InProcessStore, watching: Watching
) -> None:
    first, second = watching(), watching()
    token = store.put("d", "a", {"n": 2}, timestamp_ms=7)
    store.delete("d", "a")
    for client in (first, second):
        event = client.event()
        assert event.name == "put"
        assert event.json == {
            "kind": "put", "key": "a", "old": {"n": 1}, "new": {"n": 2},
            "partition": 0, "offset": token.offset, "timestamp_ms": 7,
        }  # fmt: skip
        assert event.cursor == f"in-process-d;0:{token.offset + 1}"
        assert client.changes(1) == [("delete", "a", {"n": 2}, None)]


def test_a_prefix_leaves_other_keys_out_and_heartbeats_move_the_cursor_on(
    store: testing.InProcessStore, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_HEARTBEAT", 0.02)
    client = watching(PATH + "?prefix=x")
    last = store.put("d", "a", {"n": 2})
    while client.cursor != f"in-process-d;0:{last.offset + 1}":
        beat = client.block()
        assert beat is not None
        assert (beat.name, beat.data) == ("heartbeat", "")
    store.put("d", "x1", {})
    assert client.changes(1) == [("put", "x1", None, {})]


@pytest.mark.parametrize("resumption", ["header", "parameter", "header first"])
def test_a_client_goes_on_where_it_was(store: testing.InProcessStore, watching: Watching, resumption: str) -> None:
    client = watching()
    store.put("d", "a", {"n": 2})
    cursor = client.event().cursor
    client.close()
    store.put("d", "a", {"n": 3})
    resumed = {
        "header": lambda: watching(Last_Event_ID=cursor),
        "parameter": lambda: watching(f"{PATH}?since={cursor}"),
        "header first": lambda: watching(f"{PATH}?since=other;0:0", Last_Event_ID=cursor),
    }[resumption]()
    store.put("d", "a", {"n": 4})
    assert resumed.changes(2) == [("put", "a", {"n": 2}, {"n": 3}), ("put", "a", {"n": 3}, {"n": 4})]


def test_a_cursor_with_a_plus_need_not_be_escaped(
    store: testing.InProcessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def topics(names: Iterable[str], *_: float) -> dict[str, Topic]:  # 3 topics of 10 have such an id
        return {name: Topic(name=name, topic_id="a+b", partitions=(0,)) for name in names}

    monkeypatch.setattr(store._engine.kafka, "topics", topics)
    serving = Serving(store, Access())
    try:
        serving.wait_ready()
        client = Client(serving.port)
        assert client.cursor == "a+b;0:1"
        Client(serving.port, f"{PATH}?since={client.cursor}").close()
        client.close()
    finally:
        serving.stop()


def test_a_client_that_another_server_showed_more_waits_for_what_it_has_not_seen(
    store: testing.InProcessStore, watching: Watching
) -> None:
    resumed, new_client = watching(Last_Event_ID="in-process-d;0:3"), watching()
    for number in range(4):
        store.put("d", "a", {"n": number})
    assert [new["n"] for *_, new in resumed.changes(2)] == [2, 3]
    assert [new["n"] for *_, new in new_client.changes(4)] == [0, 1, 2, 3]
    store.put("d", "a", {"n": 9})
    assert resumed.changes(1) == new_client.changes(1)


def test_changes_that_are_gone_are_410_with_the_cursor_of_now(
    store: testing.InProcessStore, serving: Serving, watching: Watching
) -> None:
    answer = serving.ask(PATH, headers={"Last-Event-ID": "in-process-d;0:0"})
    assert (answer.status, answer.problem) == (410, "changes-gone")
    client = watching(Last_Event_ID=answer.json["cursor"])
    store.put("d", "a", {"n": 5})
    assert client.changes(1) == [("put", "a", {"n": 1}, {"n": 5})]


@pytest.mark.parametrize(
    ("path", "method", "status", "problem"),
    [
        (PATH + "?since=x", "GET", 400, "bad-request"),
        (PATH + "?lastEventId=topic;0:1", "GET", 400, "bad-request"),  # as some clients of browsers send it
        ("/v1/directories/other/watch", "GET", 404, "unknown-directory"),
        (PATH, "HEAD", 405, ""),
        (PATH, "POST", 405, "method-not-allowed"),
    ],
)
def test_what_is_refused(serving: Serving, path: str, method: str, status: int, problem: str) -> None:
    answer = serving.ask(path, method)
    assert answer.status == status
    assert not problem or answer.problem == problem


def test_a_store_that_is_not_ready_and_a_client_without_a_token(topics: Any, kafka: str) -> None:
    """Guarantee 1."""
    from compactory import GlobalStore

    topic = topics.create()
    with topics.transaction() as producer:
        producer.produce(topic, "{}", "a")
        producer.flush(10)
        serving = Serving(GlobalStore(kafka, [topic]), Access(Tokens(read="secret")))
        try:
            path = f"/v1/directories/{topic}/watch"
            assert serving.ask(path).problem == "unauthorized"
            assert serving.ask(path, headers={"Authorization": "Bearer secret"}).problem == "not-ready"
            producer.commit_transaction(10)
            serving.wait_ready()
            client = Client(serving.port, path, Authorization="Bearer secret")
            topics.produce(topic, ("b", "{}"))
            assert client.changes(1) == [("put", "b", None, {})]
            client.close()
        finally:
            serving.stop()


def test_watchers_leave_connections_for_lookups(
    store: testing.InProcessStore, serving: Serving, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_WATCHERS", 2)
    first = watching()
    watching()
    refused = serving.ask(PATH)
    assert (refused.problem, refused.headers["retry-after"]) == ("too-many-connections", "1")
    assert b'compactory_http_watchers{directory="d"} 2.0' in serving.ask("/metrics").body
    assert serving.entry("d", "a").status == 200
    first.close()
    eventually(lambda: serving.server.app.streams.counts() == {"d": 1})
    watching()


def test_values_of_every_kind_fit_on_a_line(store: testing.InProcessStore, watching: Watching) -> None:
    """JSON with line breaks stays the same JSON; bytes are base64."""
    client, binary = watching(), watching("/v1/directories/b/watch")
    store.put("d", "a", b'{\r\n "n": "x\\n",\r "m": [1,\n2]}')
    store.put("b", "k", b"\xff\n\n")
    assert client.event().json["new"] == {"n": "x\n", "m": [1, 2]}
    assert binary.event().json["new"] == {"base64": "/woK"}


def test_a_topic_that_is_read_anew_ends_streams(store: testing.InProcessStore, watching: Watching) -> None:
    """Guarantee 2: no change of the former topic is taken for one of the new."""
    clients = [watching(), watching(PATH + "?prefix=x")]
    store.become_stale("d")
    store.become_current()
    ends = [client.event() for client in clients]
    for client, end in zip(clients, ends, strict=True):
        assert (end.name, end.json["type"]) == ("end", "urn:compactory:problem:changes-gone")
        assert client.block() is None
    resumed = watching(Last_Event_ID=ends[0].json["cursor"])
    store.put("d", "b", {})
    assert resumed.changes(1) == [("put", "b", None, {})]


def test_a_server_that_stops_says_so(store: testing.InProcessStore, serving: Serving, watching: Watching) -> None:
    client = watching()
    began = time.monotonic()
    serving.stop()
    assert time.monotonic() - began < 5
    end = client.event()
    assert (end.name, end.json["type"]) == ("end", "urn:compactory:problem:stopping")
    assert client.block() is None


def test_a_store_that_fails_ends_streams(store: testing.InProcessStore, watching: Watching) -> None:
    """Guarantee 7."""
    client = watching()
    store.put("d", "b", {})
    store.fail()
    assert client.changes(1) == [("put", "b", None, {})]
    assert client.event().json["type"].endswith(":store-failed")


@pytest.mark.parametrize("kept_changes", [10_000, 50], ids=["kept", "gone"])
def test_a_client_that_does_not_read_delays_nobody_and_misses_nothing_or_is_told(
    store: testing.InProcessStore,
    watching: Watching,
    serving: Serving,
    kept_changes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guarantee 5: neither the reader nor other clients wait for it, and what it is owed is not kept twice."""
    monkeypatch.setattr(change_log, "_MAX_CHANGES", kept_changes)
    serving._bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # of what it accepts, so that it is full soon
    slow, quick = watching(), watching()
    slow._connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    text = "x" * 8_000
    for number in range(200):
        store.put("d", "a", {"n": number, "text": text})
        assert quick.event().json["new"]["n"] == number
    assert serving.entry("d", "a").status == 200
    last = -1
    while last < 199:
        event = slow.event()
        if event.name != "put":
            assert (event.name, event.json["type"]) == ("end", "urn:compactory:problem:changes-gone")
            break
        assert event.json["new"]["n"] == last + 1
        last += 1
    assert (last == 199) is (kept_changes == 10_000)


def test_clients_that_come_and_go_see_every_change_once(
    store: testing.InProcessStore, serving: Serving, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a writer in full flight; some go on from a cursor, some from now, some watch a part of the keys."""
    monkeypatch.setattr(streams, "_MOST_BYTES", 200)  # so that clients fall behind and catch up
    monkeypatch.setattr(streams, "_HEARTBEAT", 0.001)
    monkeypatch.setattr(change_log, "_MAX_CHANGES", 1_000_000)  # then so far that changes would be gone
    has_ended = threading.Event()
    written: list[str] = []

    def write() -> None:
        choose = random.Random(seeded.random())
        while not has_ended.is_set():
            for _ in range(choose.randrange(1, 40)):  # which become visible together
                written.append(choose.choice("xy"))
                token = store._cluster.append("d", written[-1], b'{"n":%d}' % (len(written) - 1))
            store.wait_for(token)

    def watch(seed: int) -> None:
        choose, cursor, following = random.Random(seed), "", None
        for _ in range(6):
            prefix = choose.choice(["", "x"])
            client = Client(serving.port, f"{PATH}?prefix={prefix}", **({"Last-Event-ID": cursor} if cursor else {}))
            for _ in range(choose.randrange(1, 400)):
                number = client.event().json["new"]["n"]
                if following is not None:
                    assert number >= following, "seen twice"
                    between = written[following:number]
                    assert set(between) <= ({"y"} if prefix else set()), (following, number)
                following = number + 1
            cursor = client.cursor
            client.close()

    with ThreadPoolExecutor(9) as pool:
        writer = pool.submit(write)
        try:
            watchers = [pool.submit(watch, seeded.randrange(2**32)) for _ in range(8)]
            for watcher in watchers:
                watcher.result(60)
        finally:
            has_ended.set()
        writer.result(30)
    eventually(lambda: serving.server.app.streams.counts() == {"d": 0})
