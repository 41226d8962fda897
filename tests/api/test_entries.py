"""Batches and pages over a real store."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.responses import StreamingResponse

from compactory import Directory, Entry, Index
from compactory.table.secondary_index import SecondaryIndex
from compactory_api.app import _CutOff
from compactory_api.routes import entries
from tests.api.serving import Serving, ask_raw
from tests.store.topics import Topics

Serve = Callable[..., Serving]


def pages(serving: Serving, directory: str, **query: Any) -> list[list[dict[str, Any]]]:
    """All pages of a listing."""
    pages_of_entries: list[list[dict[str, Any]]] = []
    cursor: str | None = None
    while True:
        parameters = {**query, **({"cursor": cursor} if cursor else {})}
        answer = serving.ask(f"/v1/directories/{directory}/entries?{urlencode(parameters, doseq=True)}")
        assert answer.status == 200, answer
        pages_of_entries.append(answer.json["entries"])
        cursor = answer.json["next_cursor"]
        if cursor is None:
            return pages_of_entries


def keys(listed: list[list[dict[str, Any]]]) -> list[str]:
    return [entry["key"] for page in listed for entry in page]


def test_a_batch_says_what_is_found_missing_and_bad(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", '{"n":1.10}'), ("é/", "{}"), ("", '{"empty":true}'), ("bad", "nope"))
    serving = serve(topic)
    answer = serving.batch(topic, {"keys": ["é/", "zz", "a", "bad", "a", "", "zz"]})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json == {
        "found": {"é/": {}, "a": {"n": 1.1}, "": {"empty": True}},
        "missing": ["zz"],
        "bad": ["bad"],
    }
    assert b'"a":{"n":1.10}' in answer.body, "numbers keep their spelling"
    assert serving.batch(topic, {"keys": []}).json == {"found": {}, "missing": [], "bad": []}
    assert serving.batch(topic, {"keys": ["a"], "later": 1}).status == 200


def test_a_batch_has_its_limits(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, *((str(n), "{}") for n in range(1000)))
    serving = serve(topic)
    assert len(serving.batch(topic, {"keys": [str(n) for n in range(1000)]}).json["found"]) == 1000
    refused = serving.batch(topic, {"keys": ["1"] * 1001})
    assert (refused.status, refused.problem) == (413, "too-large")
    large = serving.batch(topic, {"keys": ["x" * (9 << 20)]})
    assert (large.status, large.problem) == (413, "too-large")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"1", b'"a"', b"{}", b'{"keys":null}', b'{"keys":"a"}', b'{"keys":{"a":1}}',
     b'{"keys":[1]}', b'{"keys":[null]}', b'{"keys":["\\ud800"]}', b"\xff\xfe", b"[" * 100_000,
     b'{"keys":[["a"]]}', b"NaN"],
)  # fmt: skip
def test_a_batch_that_is_none_is_refused(serve: Serve, topics: Topics, body: bytes) -> None:
    topic = topics.create()
    refused = serve(topic).batch(topic, body)
    assert (refused.status, refused.problem) == (400, "bad-request")


def test_a_batch_is_json_sent_by_post(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    serving = serve(topic)
    body = b'{"keys":[]}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"):
        refused = serving.batch(topic, body, {"Content-Type": kind})
        assert (refused.status, refused.problem) == (415, "unsupported-media-type"), kind
    for kind in ("application/json; charset=utf-8", "APPLICATION/JSON"):
        assert serving.batch(topic, body, {"Content-Type": kind}).status == 200
    assert serving.batch(topic, body, {}).status == 200
    assert serving.batch(topic, body, {"Content-Encoding": "gzip"}).status == 415
    refused = serving.ask(f"/v1/directories/{topic}/entries:batchGet")
    assert (refused.status, refused.problem, refused.headers["allow"]) == (405, "method-not-allowed", "POST")
    assert serving.batch("nope", body).problem == "unknown-directory"
    cut = f"POST /v1/directories/{topic}/entries:batchGet HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{"
    ask_raw(serving.port, cut.encode())  # the client goes away in the middle of its body
    assert serving.ask("/livez").status == 200


def test_pages_hold_every_entry_once_in_the_order_of_keys(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    expected_keys = sorted([str(n) for n in range(250)] + ["", "é", "ключ", "🏦", "a/b", "Z", "\x00"])
    topics.produce(topic, *((key, json.dumps({"k": key})) for key in expected_keys))
    serving = serve(topic)
    for limit in (1000, 257, 256, 100, 7):
        listed = pages(serving, topic, limit=limit)
        assert keys(listed) == expected_keys
        assert all(entry["value"] == {"k": entry["key"]} for page in listed for entry in page)
    [first] = pages(serving, topic, limit=1000)[0][:1]
    assert set(first) == {"key", "value", "partition", "offset", "timestamp_ms"}
    assert first["timestamp_ms"] > 1_600_000_000_000
    assert keys(pages(serving, topic, prefix="1", limit=9)) == [key for key in expected_keys if key.startswith("1")]
    assert keys(pages(serving, topic, prefix="к")) == ["ключ"]
    assert pages(serving, topic, prefix="nothing") == [[]]


def test_entries_that_stay_are_listed_once_whatever_comes_and_goes(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    stay = [f"{n:03}" for n in range(0, 200, 2)]
    topics.produce(topic, *((key, "{}") for key in stay), *((f"{n:03}", "{}") for n in range(1, 200, 4)))
    serving = serve(topic)
    listed_keys: list[str] = []
    cursor = ""
    for number in range(1, 400):
        url = f"/v1/directories/{topic}/entries?limit=10" + (f"&cursor={cursor}" if cursor else "")
        answer = serving.ask(url).json
        listed_keys += [entry["key"] for entry in answer["entries"]]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
        last = int(listed_keys[-1])  # the page's own last key and what comes next are deleted, others appear around
        changes = [(f"{n:03}", None) for n in (last, last + 1) if n % 2] + [
            (f"{last:03}x", "{}"),
            (f"{number:03}y", "{}"),
        ]
        serving.store.wait_for(*topics.produce(topic, *changes))
    assert [key for key in listed_keys if key in set(stay)] == stay
    assert len(listed_keys) == len(set(listed_keys))


class Vanishing:
    """A view of which an entry goes between the look at the keys and the look at the entry."""

    directory = Directory("d")

    def __init__(self, deleted_key: str) -> None:
        self.deleted_key = deleted_key

    def keys_from(self, previous_key: str | None, prefix: str) -> Iterator[str]:
        return (key for key in "abcd" if key > (previous_key or "") and key.startswith(prefix))

    def entry(self, key: str) -> Entry:
        if key == self.deleted_key:
            raise KeyError(key)
        return Entry(key, b"{}", "t", 0, 0, 0)


@pytest.mark.parametrize("deleted_key", ["a", "b"])
def test_a_page_that_lost_an_entry_meanwhile_is_not_taken_for_the_last(deleted_key: str) -> None:
    view: Any = Vanishing(deleted_key)
    first, next_cursor = entries.page(view, entries.EntryQuery(limit=2))
    second, last_cursor = entries.page(view, entries.EntryQuery(limit=2, cursor=next_cursor))
    assert [entry.key for entry in (*first, *second)] == [key for key in "abcd" if key != deleted_key]
    assert last_cursor is None


def test_large_values_make_pages_shorter_and_batches_refused(
    serve: Serve, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "MOST_PAGE_BYTES", 10_000)
    monkeypatch.setattr(entries, "MOST_VALUE_BYTES", 10_000)
    topic = topics.create()
    topics.produce(
        topic,
        *((f"{n:02}", json.dumps({"a": 1, "t": "x" * 3000})) for n in range(8)),
        ("z", json.dumps({"t": "y" * 12_000})),
    )
    serving = serve(Directory("d", topic=topic, indexes=[Index("a")]))
    assert [len(page) for page in pages(serving, "d")] == [3, 3, 2, 1]
    assert [len(page) for page in pages(serving, "d", index="a", value="1")] == [3, 3, 2]
    assert len(serving.batch("d", {"keys": ["00", "01", "02"]}).json["found"]) == 3
    refused = serving.batch("d", {"keys": ["00", "01", "02", "03"]})
    assert (refused.status, refused.problem) == (413, "too-large")


def test_a_page_of_a_popular_value_reads_no_more_entries_than_it_shows(
    serve: Serve, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create()
    topics.produce(topic, *((f"k{n:04}", '{"a":"popular"}') for n in range(3000)))
    serving = serve(Directory("d", topic=topic, indexes=[Index("a")]))
    read: list[object] = []
    term_of = SecondaryIndex.term_of
    monkeypatch.setattr(SecondaryIndex, "term_of", lambda self, doc: (read.append(doc), term_of(self, doc))[1])
    listed = pages(serving, "d", index="a", value="popular", limit=1000)
    assert keys(listed) == [f"k{n:04}" for n in range(3000)]
    assert len(read) <= 3000 + len(listed)


def test_an_error_within_an_answer_ends_it_and_begins_no_other(serve: Serve, topics: Topics) -> None:
    app = serve(topics.create()).server.app

    async def half() -> AsyncIterator[bytes]:
        yield b"half of it"
        raise KeyError("the other half")

    app.routes.add_api_route("/half", lambda: StreamingResponse(half()))
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/half", "raw_path": b"/half", "query_string": b"", "headers": []}
    scope["headers"] = [(b"host", b"localhost")]
    with pytest.raises(_CutOff):  # the server closes the connection then
        asyncio.run(app(scope, receive, send))
    assert [message["type"] for message in sent].count("http.response.start") == 1
    assert sent[-1].get("more_body") is True


def test_an_index_lists_what_has_the_value(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    rows = {
        f"T{n:03}": {
            "acquirer": f"A{n % 3}",
            "n": n % 5,
            "on": n % 2 == 0,
            "code": str(n % 5),
            "where": {"city": "Rīga"},
        }
        for n in range(60)
    }
    topics.produce(topic, *((key, json.dumps(row)) for key, row in rows.items()))
    indexes = [Index("acquirer"), Index("n"), Index("on"), Index("code"), Index("acquirer", "n", name="both")]
    serving = serve(Directory("d", topic=topic, indexes=[*indexes, Index("where.city", name="city")]))

    def having(**fields: Any) -> list[str]:
        return [key for key, row in rows.items() if all(row[name] == value for name, value in fields.items())]

    assert keys(pages(serving, "d", index="acquirer", value="A1", limit=7)) == having(acquirer="A1")
    assert keys(pages(serving, "d", index="n", value="3")) == having(n=3)
    assert keys(pages(serving, "d", index="code", value="3")) == having(code="3")
    assert keys(pages(serving, "d", index="on", value="true", limit=11)) == having(on=True)
    assert keys(pages(serving, "d", index="both", value=["A1", "4"], limit=2)) == having(acquirer="A1", n=4)
    assert len(keys(pages(serving, "d", index="city", value="Rīga"))) == 60
    assert keys(pages(serving, "d", index="acquirer", value="A1", prefix="T01")) == ["T010", "T013", "T016", "T019"]
    assert keys(pages(serving, "d", index="acquirer", value="nobody")) == []


def test_a_unique_index_lists_one(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("1", '{"t":"T1","v":1}'), ("2", '{"t":"T1","v":2}'), ("3", '{"t":"T2"}'))
    serving = serve(Directory("d", topic=topic, indexes=[Index("t", unique=True)]))
    [[entry]] = pages(serving, "d", index="t", value="T1")
    assert entry["key"] == "2"


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"), ("limit=", "limit"),
        ("limit=1e3", "limit"), ("limit=" + "9" * 5000, "limit"), ("index=nope&value=1", "no index 'nope'"),
        ("index=a", "0 given"), ("key=1&prefix=1", "give it alone"), ("key=1&index=a&value=1", "give it alone"),
        ("index=a&value=1&value=2", "2 given"), ("value=1", "index="), ("index=&value=1", "no index ''"),
        ("cursor=x", "no server made it"), ("cursor=", "no server made it"), ("cursor=%C3%A9", "no server made it"),
        ("cursor=AAAAAAAAAAAA", "belongs to another"), ("cursor=%FF", "no server made it"),
        ("a=1", "unknown parameter 'a': see /openapi.json"),
    ],
)  # fmt: skip
def test_a_listing_that_makes_no_sense_is_refused(serve: Serve, topics: Topics, query: str, detail: str) -> None:
    topic = topics.create()
    topics.produce(topic, ("1", '{"a":1}'))
    serving = serve(Directory("d", topic=topic, indexes=[Index("a")]))
    refused = serving.ask(f"/v1/directories/d/entries?{query}")
    assert refused.status == 400, refused
    assert refused.problem in ("bad-request", "unknown-index")
    assert detail in refused.json["detail"]


def test_one_entry_is_listed_by_its_key(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", "{}"), ("ab", '{"n":1}'), ("", "{}"))
    serving = serve(topic)
    assert keys(pages(serving, topic, key="ab")) == ["ab"]
    assert keys(pages(serving, topic, key="")) == [""]
    assert pages(serving, topic, key="b") == [[]]


def test_a_cursor_is_good_for_its_own_listing_only(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, *((f"k{n}", '{"a":1}') for n in range(5)))
    directory = Directory("d", topic=topic, indexes=[Index("a")])
    serving = serve(directory, Directory("e", topic=topic))
    cursor = serving.ask("/v1/directories/d/entries?index=a&value=1&limit=2").json["next_cursor"]
    assert cursor
    next_page = serving.ask(f"/v1/directories/d/entries?index=a&value=1&limit=3&cursor={cursor}")
    assert [entry["key"] for entry in next_page.json["entries"]] == ["k2", "k3", "k4"]
    for query in (
        "d/entries?limit=2",
        "d/entries?index=a&value=2",
        "d/entries?index=a&value=1&prefix=k",
        "e/entries?limit=2",
    ):
        assert serving.ask(f"/v1/directories/{query}&cursor={cursor}").status == 400, query
    broken = base64.urlsafe_b64encode(base64.urlsafe_b64decode(cursor + "==")[:8] + b"\xff").decode()
    assert serving.ask(f"/v1/directories/d/entries?index=a&value=1&cursor={broken}").status == 400


def test_values_that_are_not_json_do_not_break_documents(serve: Serve, topics: Topics) -> None:
    words, blobs, trusted = topics.create(), topics.create(), topics.create()
    topics.produce(words, ("k", 'say "hi"'))
    topics.produce(blobs, ("k", b"\xff"))
    serving = serve(Directory("w", topic=words, decode=str), Directory("b", topic=blobs, decode=bytes))
    assert serving.batch("w", {"keys": ["k"]}).json["found"] == {"k": 'say "hi"'}
    assert pages(serving, "b")[0][0]["value"] == {"base64": "/w=="}
    topics.produce(trusted, ("k", "not json"))
    careless = serve(trusted, validate="read")
    assert careless.batch(trusted, {"keys": ["k"]}).json["found"] == {"k": {"base64": "bm90IGpzb24="}}
