"""Guarantee 6 over HTTP: who carries a token reads its own write, or is told that it can't yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from compactory_api.http.freshness import DEFAULT_WAIT, LONGEST_WAIT, wait_of
from tests.api.serving import Serving
from tests.store.topics import Topics, eventually

Serve = Callable[..., Serving]


def fresh(token: object, wait: float | None = None) -> dict[str, str]:
    headers = {"Compactory-Min-Offset": str(token)}
    return headers if wait is None else {**headers, "Prefer": f"wait={wait:g}"}


def test_guarantee_6_every_write_is_read_by_who_carries_its_token(serve: Serve, topics: Topics) -> None:
    topic = topics.create(partitions=3)
    serving = serve(topic)
    for number in range(60):
        [token] = topics.produce(topic, ("T1", f'{{"v":{number}}}'), partition=0)
        answer = serving.entry(topic, "T1", headers=fresh(token, 10))
        assert (answer.status, answer.json) == (200, {"v": number})
    [token] = topics.produce(topic, ("T1", None), partition=0)
    assert serving.entry(topic, "T1", headers=fresh(token, 10)).status == 404
    tokens = topics.produce(topic, ("T1", '{"v":"back"}'), partition=0) + topics.produce(
        topic, ("b", "{}"), partition=2
    )
    min_offsets = ", ".join(map(str, tokens))
    headers = fresh(min_offsets, 10) | {"Content-Type": "application/json"}
    answer = serving.batch(topic, {"keys": ["T1", "b"]}, headers)
    assert answer.json["found"] == {"T1": {"v": "back"}, "b": {}}
    [token] = topics.produce(topic, ("c", "{}"), partition=1)
    listed = serving.ask(f"/v1/directories/{topic}/entries", headers=fresh(token, 10)).json["entries"]
    assert [entry["key"] for entry in listed] == ["T1", "b", "c"]


def test_a_wait_holds_no_thread_and_lets_others_be_answered(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("T1", '{"v":1}'))
    serving = serve(topic)
    serving.entry(topic, "T1")
    threads_before = {thread.name for thread in threading.enumerate()}
    waiting = [
        serving.meanwhile(lambda: serving.entry(topic, "T1", headers=fresh(f"{topic}:0:1", 30))) for _ in range(40)
    ]
    eventually(lambda: serving.server.app.freshness.waiters == 40)
    assert serving.entry(topic, "T1").json == {"v": 1}
    new = {thread.name for thread in threading.enumerate()} - threads_before
    assert not [name for name in new if not name.startswith("Thread-")], "the test's own are called Thread-…"
    topics.produce(topic, ("T1", '{"v":2}'))
    assert {answer().body for answer in waiting} == {b'{"v":2}'}
    assert not serving.server.app.freshness.waiters


def test_what_is_not_visible_in_time_is_refused_with_the_gap(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("T1", "{}"))
    serving = serve(topic)
    began = time.monotonic()
    late = serving.entry(topic, "T1", headers=fresh(f"{topic}:0:7", 0.2))
    assert 0.2 <= time.monotonic() - began < 5
    assert (late.status, late.problem) == (412, "not-fresh-enough")
    assert late.json["gap"] == [{"topic": topic, "partition": 0, "missing": 7}]

    def took() -> float:
        began = time.monotonic()
        assert serving.entry(topic, "T1", headers=fresh(f"{topic}:0:7", 0)).status == 412
        assert serving.entry(topic, "T1", headers=fresh(f"{topic}:0:{2**63 - 1}", 0)).status == 412
        assert serving.entry(topic, "T1", headers=fresh(f"{topic}:0:0", 0)).status == 200
        return time.monotonic() - began

    assert min(took() for _ in range(3)) < 0.9, "wait=0 does not wait"
    assert serving.entry(topic, "T1", headers=fresh(f"{topic}:0:7")).status == 412, "one second is the default"
    assert (
        serving.batch(topic, {"keys": []}, fresh(f"{topic}:0:7", 0) | {"Content-Type": "application/json"}).status
        == 412
    )
    assert serving.ask(f"/v1/directories/{topic}/entries", headers=fresh(f"{topic}:0:7", 0)).status == 412


def test_a_token_of_elsewhere_never_satisfies(serve: Serve, topics: Topics) -> None:
    topic, other_topic = topics.create(partitions=2), topics.create()
    topics.produce(topic, *[("a", "{}")] * 20, partition=0)
    topics.produce(other_topic, *[("a", "{}")] * 20)
    serving = serve(topic, other_topic)
    for partition in (1, 2, 17):
        late = serving.entry(topic, "a", headers=fresh(f"{topic}:{partition}:3", 0))
        assert (late.status, late.json["gap"][0]["missing"]) == (412, 4), partition
    for foreign in (f"{other_topic}:0:3", "nothing:0:0", f"{topic}:0:3, {other_topic}:0:3"):
        refused = serving.entry(topic, "a", headers=fresh(foreign, 0))
        assert (refused.status, refused.problem) == (400, "bad-request"), foreign
        assert "another topic" in refused.json["detail"]


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        ":",
        "t:0",
        "t:0:",
        "t:-1:0",
        "t:0:-1",
        "t:0:1.5",
        "t:0:٣",
        "t:0:" + "9" * 5000,
        "t::1",
        ",",
        "t:0:1,",
        "\xff",
    ],
)
def test_malformed_tokens_are_refused(serve: Serve, topics: Topics, token: str) -> None:
    topic = topics.create(name=topics.unique("t"))
    serving = serve(topic)
    text = token.replace("t:", f"{topic}:").encode().decode("latin-1")
    for answer in (
        serving.entry(topic, "a", headers=fresh(text)),
        serving.ask(f"/v1/directories/{topic}/entries", headers=fresh(text)) if text else None,
    ):
        assert answer is None or (answer.status, answer.problem) == (400, "bad-request")


def test_a_flood_of_tokens_is_refused(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    serving = serve(topic)
    assert serving.entry(topic, "a", headers=fresh(",".join([f"{topic}:0:1"] * 101))).status == 400


def test_before_it_is_ready_it_says_so_instead_of_waiting(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", "{}"))
    with topics.transaction() as producer:
        producer.produce(topic, "{}", "b")
        producer.flush(10)
        serving = serve(topic, ready=False)
        eventually(lambda: serving.ask("/readyz").json["blocking"])
        loading = serving.entry(topic, "a", headers=fresh(f"{topic}:0:0", 20))
        assert (loading.status, loading.problem, loading.headers["retry-after"]) == (503, "not-ready", "1")
        producer.commit_transaction(10)
    serving.wait_ready()


def test_closing_the_store_ends_waits(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    serving = serve(topic)
    waiting = serving.meanwhile(lambda: serving.entry(topic, "a", headers=fresh(f"{topic}:0:5", 30)))
    eventually(lambda: serving.server.app.freshness.waiters)
    serving.store.close()
    ended = waiting()
    assert (ended.status, ended.problem) == (503, "store-closed")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, DEFAULT_WAIT),
        (b"wait=5", 5),
        (b"respond-async, WAIT = 2.5", 2.5),
        (b'wait="3"; x=y', 3),
        (b"wait=0", 0),
        (b"wait=99999", LONGEST_WAIT),
        (b"wait=-1", DEFAULT_WAIT),
        (b"wait=nan", DEFAULT_WAIT),
        (b"wait=" + b"9" * 400, DEFAULT_WAIT),
        (b"\xff\xfe", DEFAULT_WAIT),
    ],
)
def test_prefer_is_read_as_rfc_7240_says(header: bytes | None, seconds: float) -> None:
    assert wait_of(header) == seconds
