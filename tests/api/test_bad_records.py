"""POST /v1/errors:retry and :skip: for the admin, by place or all of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from compactory import Directory
from compactory_api.http.access import Access, Tokens
from tests.api.serving import Answer, Serving
from tests.store.topics import Topics

Serve = Callable[..., Serving]

READ, ADMIN = "read-me.0123456789", "admin/me+0123456789=="
TOKENS = Access(Tokens(read=READ, admin=ADMIN))


def deal(serving: Serving, verb: str, body: Any = None, token: str = ADMIN) -> Answer:
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    return serving.ask(f"/v1/errors:{verb}", "POST", body=content, headers={"Authorization": f"Bearer {token}"})


def place(directory: str, offset: int, partition: int = 0) -> dict[str, Any]:
    return {"directory": directory, "partition": partition, "offset": offset}


@pytest.mark.parametrize("verb", ["retry", "skip"])
def test_only_the_admin_deals_with_bad_records(serve: Serve, topics: Topics, verb: str) -> None:
    """Guarantee 4: who may look things up may not change what others find."""
    topic = topics.create()
    topics.produce(topic, ("a", "bad"))
    serving = serve(topic, access=TOKENS)
    for refused in (deal(serving, verb, token=READ), deal(serving, verb, {"errors": [place(topic, 0)]}, READ)):
        assert (refused.status, refused.problem) == (403, "forbidden")
        assert "COMPACTORY_HTTP_ADMIN_TOKEN" in refused.json["detail"]
    assert serving.ask(f"/v1/errors:{verb}", "POST").status == 401
    assert serving.ask(f"/v1/errors:{verb}", headers={"Authorization": f"Bearer {ADMIN}"}).status == 405
    assert len(serving.store.quarantine()) == 1
    everybody = serve(topic)
    assert everybody.ask(f"/v1/errors:{verb}", "POST").status == 403, "without an admin token nobody is admin"


def test_bad_records_are_retried_and_skipped_by_their_places(serve: Serve, topics: Topics) -> None:
    """Guarantee 4: what is dealt with is counted; the others stay."""
    decodable = {"good"}

    def decode(value: bytes) -> str:
        if value.decode() not in decodable:
            raise ValueError("not known yet")
        return value.decode()

    topic = topics.create()
    topics.produce(topic, ("a", "good"), ("a", "later"), ("b", "later"), ("c", "never"), ("d", "never"))
    serving = serve(Directory("d", topic=topic, decode=decode), access=TOKENS)
    reader = {"Authorization": f"Bearer {READ}"}
    assert deal(serving, "retry").json == {"done": 0, "outstanding": 4}
    assert serving.entry("d", "b", headers=reader).problem == "bad-record"
    decodable.add("later")
    assert deal(serving, "retry", {"errors": [place("d", 2), place("d", 3)]}).json == {"done": 1, "outstanding": 3}
    assert serving.entry("d", "b", headers=reader).body == b"later"
    assert serving.entry("d", "a", headers=reader).body == b"good"
    assert deal(serving, "skip", {"errors": [place("d", 3)]}).json == {"done": 1, "outstanding": 2}
    assert serving.entry("d", "c", headers=reader).problem == "no-entry"
    assert deal(serving, "retry").json == {"done": 1, "outstanding": 1}
    assert serving.entry("d", "a", headers=reader).body == b"later"
    assert deal(serving, "skip").json == {"done": 1, "outstanding": 0}
    assert deal(serving, "skip").json == {"done": 0, "outstanding": 0}
    assert serving.ask("/v1/errors", headers=reader).json == {"errors": [], "outstanding": 0}


def test_places_that_are_not_bad_any_more_are_left_out(serve: Serve, topics: Topics) -> None:
    """Guarantee 4: a record that a newer one superseded is neither retried nor skipped over it."""
    topic = topics.create()
    topics.produce(topic, ("a", "bad"), ("b", "bad"))
    serving = serve(topic, access=TOKENS)
    topics.produce(topic, ("a", '{"n":1}'))
    serving.store.barrier()
    elsewhere = [place(topic, 0), place(topic, 99), place(topic, 1, partition=7), place("other", 1)]
    for verb in ("retry", "skip"):
        assert deal(serving, verb, {"errors": elsewhere}).json == {"done": 0, "outstanding": 1}
    assert deal(serving, "skip", {"errors": []}).json == {"done": 0, "outstanding": 1}, "nothing named, nothing done"
    assert serving.entry(topic, "a", headers={"Authorization": f"Bearer {READ}"}).json == {"n": 1}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"errors": 1}',
        b'{"errors": [{"directory": "d", "partition": 0}]}',
        b'{"errors": [{"directory": "d", "partition": "x", "offset": 0}]}',
        b'{"errors": [{"directory": "d", "partition": false, "offset": 0}]}',
        b'{"errors": [null]}',
        b"\xff",
    ],
)
def test_a_body_that_says_something_else_changes_nothing(serve: Serve, topics: Topics, body: bytes) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", "bad"))
    serving = serve(topic, access=TOKENS)
    for verb in ("retry", "skip"):
        refused = deal(serving, verb, body)
        assert (refused.status, refused.problem) == (400, "bad-request")
    assert len(serving.store.quarantine()) == 1


def test_a_reader_that_is_at_something_else_for_long_is_no_failed_precondition(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", "bad"))
    serving = serve(topic, access=TOKENS)
    release = threading.Event()
    busy = threading.Thread(target=lambda: serving.store._reader.run(lambda: release.wait(30), 30), daemon=True)
    busy.start()
    try:
        late = deal(serving, "retry")
        assert (late.status, late.problem, late.headers["retry-after"]) == (503, "not-ready", "1")
        assert "the reader did not get to it" in late.json["detail"]
    finally:
        release.set()
    busy.join(10)
    assert deal(serving, "skip").json == {"done": 1, "outstanding": 0}
