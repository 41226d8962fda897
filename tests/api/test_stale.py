"""Data that is old: what demands of freshness, probes and listings make of it."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from compactory import Directory, StaleData, StoreState
from compactory_api.http.freshness import max_age_of
from compactory_api.http.models import Status
from compactory_api.http.problem import problem
from tests.api.serving import Serving
from tests.store.ingest.test_rebuild import recreate
from tests.store.topics import Topics, eventually, send

Serve = Callable[..., Serving]

GARBAGE = ("max-age=", "max-age=x", "max-age=-5", "no-store", "s-maxage=1", "xmax-age=1", "max-age=1e9", "=;,,", "é")


def fresh(seconds: float | str) -> dict[str, str]:
    return {"Cache-Control": f"max-age={seconds}"}


def test_guarantee_2_a_demand_of_freshness_fails_open_or_closed(serve: Serve, topics: Topics) -> None:
    topic, fresh_topic = topics.create(), topics.create()
    topics.produce(topic, ("a", '{"n":1}'))
    topics.produce(fresh_topic, ("a", "{}"))
    serving = serve(
        Directory("closed", topic=topic, on_stale="raise"),
        Directory("open", topic=topic),
        Directory("other", topic=fresh_topic),
    )
    for name in ("closed", "open", "other"):
        eventually(lambda name=name: serving.entry(name, "a", headers=fresh(10)).status == 200)
    with topics.transaction() as producer:  # from now on nobody can know what is at the end
        send(producer, topic, [("b", "{}")])
        eventually(lambda: serving.entry("closed", "a", headers=fresh(2)).status == 503)
        refused = serving.entry("closed", "a", headers=fresh("2, no-transform"))
        assert refused.problem == "stale"
        assert refused.json["max_age_seconds"] == 2
        assert 2 < refused.json["age_seconds"] < 60
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["cache-control"] == "no-store"
        assert serving.entry("closed", "a", headers=fresh(3600)).json == {"n": 1}
        assert serving.entry("closed", "nope", headers=fresh(2)).problem == "stale", "nobody knows that it is not there"
        assert serving.entry("open", "a", headers=fresh(2)).json == {"n": 1}
        assert serving.store["open"].stale_reads > 0
        assert serving.entry("other", "a", headers=fresh(10)).status == 200, "each directory by its own topic"
        assert serving.ask("/readyz").status == 200
        producer.commit_transaction(10)
    eventually(lambda: serving.entry("closed", "a", headers=fresh(5)).status == 200)


def test_the_age_told_is_above_the_age_allowed() -> None:
    assert orjson.loads(problem(StaleData("", 2.0001, 2.0)).body)["age_seconds"] == 2.001


def test_what_is_no_demand_is_none(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", "{}"))
    serving = serve(Directory("d", topic=topic, on_stale="raise"))
    for text in GARBAGE:
        assert max_age_of(text.encode("latin-1")) is None
        assert serving.entry("d", "a", headers={"Cache-Control": text}).status == 200, text
    assert serving.store["d"].stale_reads == 0


def test_guarantee_2_a_topic_that_is_read_anew_is_stale_and_ready(serve: Serve, topics: Topics) -> None:
    """The directory says so; probes stay green and its old entries are answered."""
    topic, fresh_topic = topics.create(), topics.create()
    topics.produce(topic, ("old", "{}"))
    serving = serve(topic, Directory("again", topic=topic), fresh_topic)

    def states() -> list[str]:
        return [directory["state"] for directory in serving.ask("/v1/directories").json["directories"]]

    assert states() == ["ready", "ready", "ready"]
    with topics.transaction() as producer:
        with serving.store._discovery._refreshing:  # so that the new topic is not read before there is something in it
            recreate(topics, topic)
            send(producer, topic, [("new", "{}")])
        eventually(lambda: serving.store.state is StoreState.STALE and serving.store.rebuilds(), 30)
        assert states() == ["stale", "stale", "ready"]
        [rebuilt, _, fine] = serving.ask("/v1/directories").json["directories"]
        assert "created again" in rebuilt["stale"]
        assert fine["stale"] is None
        assert (serving.ask("/readyz").status, serving.ask("/livez").status) == (200, 200)
        assert serving.entry(topic, "old").status == 200
        status = serving.ask("/v1/status").json
        [worker] = status["workers"]
        assert (status["ready"], worker["state"], list(worker["stale"])) == (True, "stale", [topic])
        text = serving.ask("/metrics").body.decode()
        assert f'compactory_store_stale{{topic="{topic}"}} 1.0' in text
        assert f'compactory_store_stale{{topic="{fresh_topic}"}} 0.0' in text
        assert f'compactory_store_rebuilds_total{{cause="recreated",topic="{topic}"}} 1.0' in text
        producer.commit_transaction(10)
    eventually(lambda: states() == ["ready", "ready", "ready"], 30)
    assert serving.entry(topic, "new").status == 200
    assert serving.entry(topic, "old").status == 404


def test_guarantee_1_a_topic_that_is_waited_for_blocks_readiness_by_name(serve: Serve, topics: Topics) -> None:
    name, existing_topic = topics.unique("store"), topics.create()
    serving = serve(name, existing_topic, ready=False, missing_topic="wait")
    blocked = {"topic": name, "partition": None, "position": None, "target": None}
    eventually(lambda: blocked in serving.ask("/readyz").json["blocking"])
    assert serving.ask("/readyz").status == 503
    assert serving.ask("/livez").status == 200
    assert serving.entry(existing_topic, "a").problem == "not-ready"
    topics.create(name=name)
    serving.wait_ready()
    assert serving.ask("/readyz").json == {"ready": True, "blocking": []}


def test_status_answers_what_its_schema_says(serve: Serve, topics: Topics) -> None:
    """In every state; unknown fields of a store's would be undocumented ones."""
    topic = topics.create()
    serving = serve(topic, ready=False)
    for _ in range(2):
        [worker] = Status.model_validate(serving.ask("/v1/status").json).workers
        assert not worker.model_extra
        serving.wait_ready()
