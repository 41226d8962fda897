"""The single lookup: nasty keys, every header, every refusal."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from types import MethodType
from unittest.mock import Mock
from urllib.parse import quote

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from compactory import Directory
from compactory_api.http.asgi_server import send_whole
from tests.api.serving import Serving, ask_raw
from tests.store.topics import Topics, eventually

KEYS = [
    "T1",
    "",
    " ",
    "/",
    "//",
    "a/b/c",
    "a/entries/b",
    "entries:batchGet",
    "..",
    ".",
    "%",
    "%2F",
    "%252F",
    "100%",
    "a+b",
    "a b",
    "a?b=c&d",
    "a#b",
    "ключ",
    "é",
    "e\u0301",
    "🏦/🏧",
    '"',
    "'",
    "\\",
    "\n",
    "\x00",
    "\x7f",
    "a:b;c,d",
    "x" * 4000,
]

Serve = Callable[..., Serving]


def test_every_key_is_found_by_its_own_path_and_by_no_other(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    values = {key: f'{{"n":  {number}}}'.encode() for number, key in enumerate(KEYS)}
    topics.produce(topic, *values.items())
    serving = serve(topic)
    for key, value in values.items():
        answer = serving.entry(topic, quote(key, safe=""))
        assert (answer.status, answer.body) == (200, value), key
        lower = re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), quote(key, safe=""))
        assert serving.entry(topic, lower).body == value


def test_slashes_may_stand_as_they_are_and_escapes_are_read_once(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a/b", '{"it":"slash"}'), ("a%2Fb", '{"it":"escape"}'), ("/", '{"it":"one"}'))
    serving = serve(topic)
    assert serving.entry(topic, "a/b").json == {"it": "slash"}
    assert serving.entry(topic, "a%2Fb").json == {"it": "slash"}
    assert serving.entry(topic, "a%252Fb").json == {"it": "escape"}
    assert serving.entry(topic, "a%25252Fb").problem == "no-entry"
    assert serving.entry(topic, "/").json == {"it": "one"}
    assert serving.entry(topic, "a/b?x=1&y").json == {"it": "slash"}
    assert serving.entry(topic, "a//b").status == 404


def test_the_answer_is_the_topics_bytes_and_says_which_record_they_are(serve: Serve, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    value = b'{ "n" : 1.10, "text":"\\u00e9",\t"n":2 }'
    [_, token] = topics.produce(topic, ("other", "{}"), ("T1", value), partition=1)
    serving = serve(topic)
    answer = serving.entry(topic, "T1")
    assert answer.status == 200
    assert answer.body == value
    topic_id = serving.store.topics()[topic].topic_id
    assert answer.headers["etag"] == f'"{topic_id}-1-1"'
    assert answer.headers["compactory-offset"] == str(token) == f"{topic}:1:1"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(value))
    assert answer.headers["cache-control"] == "no-cache"
    assert "server" not in answer.headers
    head = serving.entry(topic, "T1", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert {**head.headers, "date": ""} == {**answer.headers, "date": ""}


def test_an_answer_in_one_write_is_the_answer_that_uvicorn_makes(serve: Serve, topics: Topics) -> None:
    """uvicorn sends the last one, as the connection ends with it."""
    topic = topics.create()
    topics.produce(topic, ("T1", '{"n":1}'))
    serving = serve(topic)
    for key, status in (("T1", b"200"), ("T2", b"404")):
        request = f"GET /v1/directories/{topic}/entries/{key} HTTP/1.1\r\nHost: localhost\r\n"
        with socket.create_connection(("127.0.0.1", serving.port), timeout=10) as connection:
            connection.sendall(f"{request}\r\n{request}Connection: close\r\n\r\n".encode())
            answers = connection.makefile("rb").read()
        _, ours, uvicorns = re.sub(rb"date: .*?\r\n|connection: close\r\n", b"", answers).split(b"HTTP/1.1 ")
        assert ours == uvicorns
        assert ours.startswith(status)


def test_no_header_breaks_its_line() -> None:
    cycle = Mock(RequestResponseCycle, keep_alive=True, scope={"method": "GET"}, default_headers=[])
    cycle.configure_mock(disconnected=False, response_started=False, access_log=False, flow=Mock(write_paused=False))
    send = MethodType(RequestResponseCycle.send, cycle)
    for value in (b"a\nb", b"a\rb"):
        with pytest.raises(ValueError, match="line break"):
            asyncio.run(send_whole(send, 200, [(b"x", value)], b""))


def test_a_client_that_has_the_record_is_told_so(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("T1", '{"v":1}'))
    serving = serve(topic)
    tag = serving.entry(topic, "T1").headers["etag"]
    for matching in (tag, f"W/{tag}", f'"x", {tag}', "*", f'  {tag}  , "y"'):
        for method in ("GET", "HEAD"):
            answer = serving.entry(topic, "T1", method=method, headers={"If-None-Match": matching})
            assert (answer.status, answer.body) == (304, b""), matching
            assert answer.headers["etag"] == tag
            assert answer.headers["compactory-offset"] == f"{topic}:0:0"
    for different in ('"x"', tag[1:-1], tag[:-2] + '9"', "", "W/", f'"{"," * 5000}"'):
        assert serving.entry(topic, "T1", headers={"If-None-Match": different}).status == 200, different
    [token] = topics.produce(topic, ("T1", '{"v":2}'))
    changed = serving.entry(topic, "T1", headers={"If-None-Match": tag, "Compactory-Min-Offset": str(token)})
    assert (changed.status, changed.json) == (200, {"v": 2})
    assert serving.entry(topic, "no", headers={"If-None-Match": "*"}).status == 404


def test_what_is_not_there_is_not_found(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("T1", "{}"), ("gone", "{}"), ("gone", None))
    serving = serve(topic)
    for key in ("T2", "t1", "gone", "", "T1%20", "T1/"):
        answer = serving.entry(topic, key)
        assert (answer.status, answer.problem) == (404, "no-entry"), key
    assert serving.entry("nope", "T1").problem == "unknown-directory"
    assert serving.entry("", "T1").problem == "unknown-directory"
    assert serving.entry(topic, "T2", method="HEAD").status == 404
    assert serving.ask("/").problem == "no-resource"
    assert serving.ask("/v1/directories/nope").problem == "unknown-directory"
    assert serving.ask(f"/v1/directories/{topic}/nothing").problem == "no-resource"
    assert serving.ask(f"/v1//directories/{topic}/entries/T1").problem == "no-resource"
    assert serving.ask(f"/v2/directories/{topic}/entries/T1").problem == "no-resource"


def test_guarantee_4_a_bad_record_is_no_absence(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("bad", "{"), ("good", '{"v":1}'), ("good", "[1]"))
    serving = serve(topic)
    bad = serving.entry(topic, "bad")
    assert (bad.status, bad.problem) == (502, "bad-record")
    assert "/v1/errors" in bad.json["detail"]
    assert serving.entry(topic, "good").json == {"v": 1}


def test_broken_paths_are_refused(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    serving = serve(topic)
    for key in ("%", "%2", "%zz", "a%", "%ff", "%C3", "%ED%A0%80", "%C0%AF"):
        assert (serving.entry(topic, key).status, serving.entry(topic, key).problem) == (400, "bad-request"), key
    assert serving.entry("%ff", "T1").status == 400
    start = f"GET /v1/directories/{topic}/entries/".encode()
    for raw in ("é".encode(), b"\xff", b"a\x01b"):
        answer = ask_raw(serving.port, start + raw + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 4"), answer


@pytest.mark.parametrize("request_line", ["OPTIONS * HTTP/1.1", "GET http://other/livez HTTP/1.1", "GET ? HTTP/1.1"])
def test_odd_request_targets_are_no_server_errors(serve: Serve, topics: Topics, request_line: str) -> None:
    serving = serve(topics.create())
    answer = ask_raw(serving.port, f"{request_line}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert answer[9:10] in (b"2", b"4"), answer


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "POST", "OPTIONS", "TRACE"])
def test_other_methods_are_refused_with_those_that_work(serve: Serve, topics: Topics, method: str) -> None:
    topic = topics.create()
    serving = serve(topic)
    refused = serving.entry(topic, "T1", method=method)
    assert (refused.status, refused.problem) == (405, "method-not-allowed")
    writes = method in ("PUT", "PATCH", "DELETE")  # which other directories take
    assert refused.headers["allow"] == ("GET, HEAD" if writes else "DELETE, GET, HEAD, PATCH, PUT")


def test_methods_of_a_path_with_several_routes(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    refused = serve(topic).ask(f"/v1/directories/{topic}/entries", method="OPTIONS")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD, POST")


def test_a_directory_may_be_spelled_with_escapes(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("T1", "{}"))
    serving = serve(Directory("terminals of Łódź", topic=topic))
    assert serving.entry(quote("terminals of Łódź"), "T1").status == 200
    assert serving.entry(quote("terminals of Łódź").replace("t", "%74"), "T1").status == 200
    assert serving.entry(quote(quote("terminals of Łódź")), "T1").status == 404


def test_text_and_bytes_say_what_they_are(serve: Serve, topics: Topics) -> None:
    words, blobs = topics.create(), topics.create()
    topics.produce(words, ("k", "żółw"))
    topics.produce(blobs, ("k", b"\x00\xff"))
    serving = serve(Directory(words, decode=str), Directory(blobs, decode=bytes))
    word, blob = serving.entry(words, "k"), serving.entry(blobs, "k")
    assert (word.body.decode(), word.headers["content-type"]) == ("żółw", "text/plain; charset=utf-8")
    assert (blob.body, blob.headers["content-type"]) == (b"\x00\xff", "application/octet-stream")


def test_lookups_go_on_when_the_store_has_died(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("T1", "{}"))
    serving = serve(topic, on_bad_record="fail")
    assert serving.ask("/livez").status == 200
    topics.produce(topic, ("T2", "bad"))
    eventually(lambda: serving.ask("/livez").status == 503)
    assert serving.ask("/livez").json == {"live": False, "dead": ["store"]}
    assert serving.ask("/readyz").status == 503
    assert serving.entry(topic, "T1").status == 200
    late = serving.entry(topic, "T1", headers={"Compactory-Min-Offset": f"{topic}:0:9", "Prefer": "wait=20"})
    assert (late.status, late.problem) == (503, "store-failed")
    assert serving.ask("/v1/status").json["workers"][0]["state"] == "failed"
