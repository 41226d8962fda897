"""Writes of directories mastered in Kafka over HTTP: one server, two servers, refusals."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import pytest

from compactory import ConfigError, Directory, Index, Unreachable
from compactory_api.http.access import Access, Client, Scope, Tokens
from compactory_api.mastered.forwarding import OwnerUnreached
from compactory_api.mastered.write_batcher import Result
from compactory_mastered import MasteredWriter, Operation, WriteRules
from compactory_mastered.writer import start_writers
from tests.api.serving import Answer, Serving, ask_raw
from tests.store.topics import Topics, eventually

Serve = Callable[..., Serving]
LOCAL = Access(anonymous=Scope.WRITE)
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def tenants(topics: Topics) -> Directory[dict[str, Any]]:
    rules = WriteRules(schema={"required": ["email"]}, key_from=("email",), unique=(("email",),), internal=("token",))
    return Directory("tenants", topic=topics.create(), indexes=[Index("email", unique=True)], rules=rules)


def write(
    serving: Serving, method: str, key: str | None, value: Any = None, headers: Mapping[str, str] | None = None
) -> Answer:
    path = "/v1/directories/tenants/entries" + ("" if key is None else f"/{key}")
    body = None if value is None else json.dumps(value).encode()
    return serving.ask(path, method, body=body, headers={**(JSON if body else {}), **(headers or {})})


def test_a_write_is_answered_with_what_is_stored_and_a_read_with_its_token_sees_it(
    serve: Serve, tenants: Directory[Any], caplog: pytest.LogCaptureFixture
) -> None:
    serving = serve(tenants, access=LOCAL)
    with caplog.at_level(logging.INFO, "compactory.audit"):
        written = write(serving, "PUT", "a%2Fb", {"email": "a@x", "token": "secret"})
    assert (written.status, written.json) == (201, {"email": "a@x"})
    assert written.headers["location"] == "/v1/directories/tenants/entries/a%2Fb"
    assert "'a/b'" in caplog.text
    assert "secret" not in caplog.text
    offset = written.headers["compactory-offset"]
    read = serving.entry("tenants", "a%2Fb", headers={"Compactory-Min-Offset": offset, "Prefer": "wait=10"})
    assert (read.status, read.json, read.headers["etag"]) == (200, {"email": "a@x"}, written.headers["etag"])
    patched = write(serving, "PATCH", "a%2Fb", {"n": 1}, {"If-Match": written.headers["etag"]})
    assert (patched.status, patched.json) == (200, {"email": "a@x", "n": 1})
    assert write(serving, "PUT", "a%2Fb", {"email": "b@x"}, {"If-Match": written.headers["etag"]}).status == 412
    posted = write(serving, "POST", None, {"email": "c@x"})
    assert posted.status == 201
    assert write(serving, "POST", None, {"email": "c@x"}).headers["etag"] == posted.headers["etag"]
    digests = serving.ask("/v1/directories/tenants/digest/0-255?values=true").body.decode()
    assert "a@x" in digests
    assert "secret" not in digests
    assert write(serving, "DELETE", "a%2Fb").status == 204
    listed = serving.ask("/v1/directories/tenants/entries", headers={"Compactory-Min-Offset": offset})
    assert "secret" not in listed.body.decode()


@pytest.mark.parametrize("requests", [1, 2])
def test_a_client_that_ends_its_side_after_the_request_is_answered(
    serve: Serve, tenants: Directory[Any], requests: int
) -> None:
    """As `nc -N` does; the write is made in any case."""
    serving = serve(tenants, access=LOCAL)
    for line in ("PUT /v1/directories/tenants/entries/t1", "POST /v1/directories/tenants/entries"):
        body = b'{"email":"a@x"}'
        head = f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        answers = ask_raw(serving.port, request * requests)
        assert answers.count(b"HTTP/1.1 20") == requests
        assert answers.count(b"connection: close") == 1
        write(serving, "DELETE", "t1")
        write(serving, "DELETE", "a%40x")


def test_refusals_come_from_the_one_table(serve: Serve, tenants: Directory[Any], topics: Topics) -> None:
    postgres = topics.create()
    serving = serve(tenants, Directory("rows", topic=postgres), access=LOCAL)
    write(serving, "PUT", "t1", {"email": "a@x"})
    refusals = [
        (write(serving, "PUT", "t2", {"email": "a@x"}), 409, "conflict"),
        (write(serving, "PUT", "t2", {}), 422, "invalid-write"),
        (write(serving, "PUT", "t2", {"email": []}), 422, "invalid-write"),
        (write(serving, "PUT", "t1", {"email": "b@x"}, {"If-None-Match": "*"}), 412, "precondition-failed"),
        (write(serving, "PUT", "t1", {"email": "b@x"}, {"If-Match": "nothing"}), 400, "bad-request"),
        (write(serving, "DELETE", "t9"), 404, "no-entry"),
        (write(serving, "PUT", "t1", {"email": "x" * (1 << 20)}), 413, "too-large"),
        (serving.entry("tenants", "t1", method="PUT", body=b"{", headers=JSON), 400, "bad-request"),
        (
            serving.entry("tenants", "t1", method="PUT", body=b'{"n": 18446744073709551616}', headers=JSON),
            400,
            "bad-request",
        ),
        (serving.entry("tenants", "t1", method="PUT", body=b"{}"), 415, "unsupported-media-type"),
        (write(serving, "PUT", "t1", {}, {"Content-Encoding": "gzip"}), 415, "unsupported-media-type"),
    ]
    for answer, status, kind in refusals:
        assert (answer.status, answer.problem) == (status, kind)
    elsewhere = serving.entry("rows", "1", method="PUT", body=b"{}", headers=JSON)
    assert (elsewhere.status, elsewhere.problem, elsewhere.headers["allow"]) == (405, "method-not-allowed", "GET, HEAD")
    assert "Postgres" in elsewhere.json["detail"]
    with closing(HTTPConnection("127.0.0.1", serving.port, timeout=30)) as connection:
        connection.putrequest("DELETE", "/v1/directories/tenants/entries/t1")
        for tag in (serving.entry("tenants", "t1").headers["etag"], '"of-another"'):
            connection.putheader("If-Match", tag)
        connection.endheaders()
        assert connection.getresponse().status == 204, "a header that is sent twice is a list"


def test_each_line_of_a_bulk_write_is_answered(serve: Serve, tenants: Directory[Any]) -> None:
    serving = serve(tenants, access=LOCAL)
    lines = [json.dumps({"op": "put", "key": f"t{n}", "value": {"email": f"{n % 4}@x"}}) for n in range(5)]
    lines += ["{", json.dumps({"op": "patch", "key": "t0", "value": {"n": 1}})]
    answer = serving.ask(
        "/v1/directories/tenants/entries:bulkWrite", "POST", body="\n".join(lines).encode(),
        headers={"Content-Type": "application/x-ndjson"},
    )  # fmt: skip
    answers = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["status"] for line in answers] == [201, 201, 201, 201, 409, 400, 200]
    assert [line["line"] for line in answers] == [1, 2, 3, 4, 5, 6, 7]
    assert answers[4]["problem"]["type"].endswith(":conflict")
    tags = [f'"{answers[0]["etag"]}"', answers[6]["etag"]]  # as a header has it, and as a line is answered
    lines = [json.dumps({"op": "delete", "key": "t0", "if_match": tag}) for tag in tags]
    answer = serving.ask(
        "/v1/directories/tenants/entries:bulkWrite", "POST", body="\n".join(lines).encode(),
        headers={"Content-Type": "application/x-ndjson"},
    )  # fmt: skip
    assert [json.loads(line)["status"] for line in answer.body.splitlines()] == [412, 200]
    for name in ("Idempotency-Key", "If-Match", "If-None-Match"):  # would be meant for each line
        headers = {"Content-Type": "application/x-ndjson", name: "*"}
        refused = serving.ask("/v1/directories/tenants/entries:bulkWrite", "POST", body=b"", headers=headers)
        assert (refused.status, refused.problem) == (400, "bad-request")


def bulk(serving: Serving, body: bytes) -> Answer:
    headers = {"Content-Type": "application/x-ndjson"}
    return serving.ask("/v1/directories/tenants/entries:bulkWrite", "POST", body=body, headers=headers)


def test_a_bulk_write_has_at_most_10000_lines(serve: Serve, tenants: Directory[Any]) -> None:
    serving = serve(tenants, access=LOCAL)
    for body in (b"1\n" * 10_001, b"1\n" * 8_000_000, b"\n" * 10_001 + b"1"):
        refused = bulk(serving, body)
        assert (refused.status, refused.problem) == (413, "too-large")
        assert "10000 lines" in refused.json["detail"]
    answers = bulk(serving, b"1\n" * 10_000).body.splitlines()
    assert [json.loads(line)["line"] for line in (answers[0], answers[-1])] == [1, 10_000]


def test_a_bulk_write_ends_where_its_client_has_gone(serve: Serve, tenants: Directory[Any]) -> None:
    serving = serve(tenants, access=LOCAL)
    batcher, lines = serving.server.app.writes._batchers["tenants"], list[int]()
    submit = batcher.submit
    has_ended = threading.Event()

    def submitting(operations: Sequence[Operation], caller: str) -> asyncio.Future[list[Result]]:
        lines.append(len(operations))
        if len(lines) == 1:
            return submit(operations, caller)
        has_ended.set()
        return asyncio.get_running_loop().create_future()  # never done: only the end of the client ends it

    batcher.submit = submitting  # type: ignore[method-assign]
    body = b"\n".join(b'{"op": "put", "key": "t%d", "value": {"email": "%d"}}' % (n, n) for n in range(6000))
    head = "POST /v1/directories/tenants/entries:bulkWrite HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", serving.port), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        assert b"HTTP/1.1 200" in connection.recv(65536), "the first answers come before all lines are written"
        assert has_ended.wait(30)
        assert serving.server.app.budget.used_bytes >= len(body)
    eventually(lambda: serving.server.app.budget.used_bytes == 0)
    assert lines == [2000, 2000]


def batch(serving: Serving, operations: Any, headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
    body = json.dumps({"operations": operations, **fields}).encode()
    path = "/v1/directories/tenants/entries:batchWrite"
    return serving.ask(path, "POST", body=body, headers={**JSON, **(headers or {})})


def put(key: str, email: str, **fields: Any) -> dict[str, Any]:
    return {"op": "put", "key": key, "value": {"email": email}, **fields}


def test_a_batch_is_written_whole_and_a_read_with_its_token_sees_it(
    serve: Serve, tenants: Directory[Any], caplog: pytest.LogCaptureFixture
) -> None:
    serving = serve(tenants, access=LOCAL)
    first = write(serving, "PUT", "t1", {"email": "a@x", "token": "secret"})
    operations = [
        {"op": "patch", "key": "t1", "value": {"n": 1}, "if_match": first.headers["etag"].strip('"')},
        put("t2", "b@x", if_none_match="*"),
        {"op": "post", "value": {"email": "c@x"}},
    ]
    with caplog.at_level(logging.INFO, "compactory.audit"):
        written = batch(serving, operations, {"Idempotency-Key": "k"}, cursor={"next": "17"})
    assert (written.status, written.json["cursor"]) == (200, "17")
    assert [result["status"] for result in written.json["results"]] == [200, 201, 201]
    assert [line.split(" at ")[0] for line in caplog.messages[-1].splitlines()] == [
        f"{kind} of '{result['key']}' in tenants"
        for kind, result in zip(("patch", "put", "post"), written.json["results"], strict=True)
    ]
    fresh = {"Compactory-Min-Offset": written.headers["compactory-offset"], "Prefer": "wait=10"}
    for result, value in zip(
        written.json["results"], ({"email": "a@x", "n": 1}, {"email": "b@x"}, {"email": "c@x"}), strict=True
    ):
        read = serving.entry("tenants", result["key"], headers=fresh)
        assert (read.json, read.headers["etag"]) == (value, f'"{result["etag"]}"')
    repeated = batch(serving, operations, {"Idempotency-Key": "k"}, cursor={"next": "17"})
    assert repeated.json == written.json
    assert batch(serving, operations[:1], {"Idempotency-Key": "k"}).status == 422
    path = "/v1/directories/tenants/cursors"
    eventually(lambda: serving.ask(f"{path}/default").json == {"name": "default", "cursor": "17"})
    assert serving.ask(f"{path}/other").json == {"name": "other", "cursor": None}


def test_a_refused_batch_names_the_operation_and_writes_nothing(serve: Serve, tenants: Directory[Any]) -> None:
    serving = serve(tenants, access=LOCAL)
    batch(serving, [put("t1", "a@x")], cursor={"name": "feed", "next": "1"})
    refusals = [
        (put("t3", "a@x"), 409, "conflict"),
        ({"op": "put", "key": "t3", "value": {}}, 422, "invalid-write"),
        (put("t3", "x" * 1_000_000), 422, "invalid-write"),
        (put("t2", "c@x"), 422, "invalid-write"),  # one key twice
        (put("t1", "c@x", if_none_match="*"), 412, "precondition-failed"),
        ({"op": "delete", "key": "t3"}, 404, "no-entry"),
    ]
    for operation, status, kind in refusals:
        refused = batch(serving, [put("t2", "b@x"), operation], cursor={"name": "feed", "expected": "1", "next": "2"})
        assert (refused.status, refused.problem) == (status, kind)
        assert [(error["index"], error["key"]) for error in refused.json["errors"]] == [(1, operation["key"])]
        assert refused.json["errors"][0]["detail"] in refused.json["detail"]
    for expected in ({}, {"expected": None}, {"expected": "2"}):
        refused = batch(serving, [put("t2", "b@x")], cursor={"name": "feed", "next": "2", **expected})
        assert (refused.status, refused.problem, refused.json["cursor"]) == (409, "cursor-conflict", "1")
    assert serving.entry("tenants", "t2").status == 404
    assert batch(serving, [put("t2", "b@x")], cursor={"name": "feed", "expected": "1", "next": "2"}).status == 200


def test_a_malformed_batch_is_refused_before_anything_is_written(
    serve: Serve, tenants: Directory[Any], topics: Topics
) -> None:
    tokens = Tokens(read="reader", write="writer")
    serving = serve(tenants, Directory("rows", topic=topics.create()), access=Access(tokens))
    writer, valid = by("writer"), [put("t1", "a@x")]
    refusals = [
        (batch(serving, [], writer), 422),
        (batch(serving, [put(f"t{n}", f"{n}@x") for n in range(101)], writer), 422),
        (batch(serving, {}, writer), 400),
        (batch(serving, [*valid, {"op": "rename", "key": "t1"}], writer), 400),
        (batch(serving, [*valid, {"op": [], "key": "t1"}], writer), 400),
        (batch(serving, [*valid, {"op": "put", "value": {}}], writer), 400),
        (batch(serving, [put("t1", "a@x", idempotency_key="k")], writer), 422),
        (batch(serving, valid, writer, cursors={}), 400),
        (batch(serving, valid, writer, cursor="1"), 400),
        (batch(serving, valid, writer, cursor={}), 400),
        (batch(serving, valid, writer, cursor={"next": 1}), 400),
        (batch(serving, valid, writer, cursor={"next": "1", "expects": "0"}), 400),
        (batch(serving, valid, writer, cursor={"next": "x" * 4097}), 422),
        (batch(serving, valid, writer, cursor={"next": "1", "name": "a/b"}), 422),
        (batch(serving, valid, {**writer, "If-Match": "*"}), 400),
        (batch(serving, valid, {**writer, "Content-Type": "application/x-ndjson"}), 415),
        (batch(serving, [put("t1", "x" * (17 << 20))], writer), 413),
        (batch(serving, valid, by("reader")), 403),
        (batch(serving, valid, by("nobody")), 401),
    ]
    assert [answer.status for answer, _ in refusals] == [status for _, status in refusals]
    assert refusals[3][0].json["detail"].startswith("operation 1: ")
    elsewhere = serving.ask("/v1/directories/rows/entries:batchWrite", "POST", body=b"{}", headers=writer | JSON)
    assert (elsewhere.status, elsewhere.problem) == (405, "method-not-allowed")
    cursor_statuses = {
        path: serving.ask(f"/v1/directories/{path}", headers=writer).status
        for path in ("tenants/cursors/feed", "tenants/cursors/-", "rows/cursors/feed", "other/cursors/feed")
    }
    assert [*cursor_statuses.values()] == [200, 422, 404, 404]
    assert serving.ask("/v1/directories/tenants/cursors/feed", headers=by("reader")).status == 403
    assert serving.entry("tenants", "t1", headers=writer).status == 404


def test_no_search_confirms_the_value_of_an_internal_field(serve: Serve, topics: Topics) -> None:
    indexes = [Index("email"), Index("token"), Index("card.number", name="card")]
    rules = WriteRules(internal=("token", "card"))
    serving = serve(Directory("tenants", topic=topics.create(), indexes=indexes, rules=rules), access=LOCAL)
    write(serving, "PUT", "t1", {"email": "a@x", "token": "secret", "card": {"number": "1"}})
    place = "/v1/directories/tenants/entries?index="
    eventually(lambda: len(serving.ask(f"{place}email&value=a@x").json["entries"]) == 1)
    for search in ("token&value=secret", "token&value=other", "card&value=1"):
        refused = serving.ask(place + search)
        assert (refused.status, refused.problem) == (403, "forbidden")


def test_each_write_of_a_transaction_has_a_line_in_the_audit_trail(
    serve: Serve, tenants: Directory[Any], caplog: pytest.LogCaptureFixture
) -> None:
    serving = serve(tenants, access=LOCAL)
    lines = [b'{"op": "put", "key": "t%d", "value": {"email": "%d@x"}}' % (n, n % 2) for n in range(3)]
    headers = {"Content-Type": "application/x-ndjson"}
    with caplog.at_level(logging.INFO, "compactory.audit"):
        serving.ask("/v1/directories/tenants/entries:bulkWrite", "POST", body=b"\n".join(lines), headers=headers)
    [record] = [record for record in caplog.records if record.name == "compactory.audit"]
    assert [line.split(" at ")[0] for line in record.getMessage().splitlines()] == [
        "put of 't0' in tenants", "put of 't1' in tenants",
    ]  # fmt: skip
    assert "0@x" not in caplog.text


@pytest.mark.parametrize(
    ("proxies", "address"), [((), "127.0.0.1"), (("127.0.0.0/8",), "203.0.113.9"), (("192.0.2.1",), "127.0.0.1")]
)
def test_the_audit_trail_names_the_address_that_a_configured_proxy_forwards(
    serve: Serve,
    tenants: Directory[Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    proxies: tuple[str, ...],
    address: str,
) -> None:
    """Anybody else may write into that header what they like, from this machine too."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # of uvicorn
    serving = serve(tenants, access=LOCAL, proxies=proxies)
    with caplog.at_level(logging.INFO, "compactory.audit"):
        headers = {"X-Forwarded-For": "198.51.100.1, 203.0.113.9"}
        assert write(serving, "PUT", "a", {"email": "a@x"}, headers).status == 201
    assert caplog.messages[-1].endswith(f" at {address}")


def test_wrong_topics_are_refused_before_anything_is_loaded(serve: Serve, topics: Topics) -> None:
    rules = WriteRules(min_insync_replicas=2)
    wrong = [Directory(name, topic=topics.create(cleanup_policy="compact,delete"), rules=rules) for name in ("a", "b")]
    serving = serve(*wrong, Directory("absent", topic="absent", rules=rules), ready=False, missing_topic="wait")
    eventually(lambda: serving.ended)
    assert isinstance(serving.failure, ConfigError)
    assert len(serving.failure.problems) == 4  # the policy and the replicas of each
    assert serving.store.positions() == {}


def test_a_server_serves_lookups_and_tries_again_where_its_writers_do_not_start(
    serve: Serve, tenants: Directory[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def start(writers: list[MasteredWriter]) -> None:
        tries.append(len(writers))
        if len(tries) == 1:
            raise Unreachable("Kafka", "it is away")
        start_writers(writers)

    monkeypatch.setattr("compactory_api.mastered.writes.start_writers", start)
    serving = serve(tenants, access=LOCAL)
    assert tries == [1, 1]
    assert write(serving, "PUT", "t1", {"email": "a@x"}).status == 201


def test_only_the_write_scope_writes(serve: Serve, tenants: Directory[Any]) -> None:
    tokens = Tokens(read="reader", write="writer", admin="admin")
    serving = serve(tenants, access=Access(tokens))
    statuses = {
        token: write(serving, "PUT", "t1", {"email": "a@x"}, {"Authorization": f"Bearer {token}"}).status
        for token in ("nobody", "reader", "writer", "admin")
    }
    assert statuses == {"nobody": 401, "reader": 403, "writer": 201, "admin": 200}


@pytest.fixture
def shared(serve: Serve, tenants: Directory[Any], topics: Topics) -> Serving:
    """A server of two directories, with a bad record in each; every client has a scope of its own on each."""
    acquirers = topics.create()
    for topic in (tenants.topic, acquirers):
        topics.produce(topic, ("bad", "no JSON"), ("good", "{}"))
    clients = (
        Client(name="billing", token="billing", scopes={"tenants": Scope.WRITE}),
        Client(name="support", token="support", scopes={"tenants": Scope.ADMIN, "*": Scope.READ}),
        Client(name="audit", token="audit", scopes={"*": Scope.ADMIN, "tenants": Scope.READ}),
        Client(name="nothing", token="nothing", scopes={}),
    )
    return serve(tenants, Directory("acquirers", topic=acquirers), access=Access(Tokens(clients=clients)))


def by(client: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {client}"}


def test_a_client_has_a_scope_on_each_directory(shared: Serving, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "compactory.audit"):
        scopes = {
            client: (
                write(shared, "PUT", "t1", {"email": "a@x"}, by(client)).status,
                shared.entry("tenants", "good", headers=by(client)).status,
                shared.entry("acquirers", "good", headers=by(client)).status,
            )
            for client in ("billing", "support", "audit", "nothing", "stranger")
        }
    assert scopes == {
        "billing": (201, 200, 403),
        "support": (200, 200, 200),
        "audit": (403, 200, 200),
        "nothing": (403, 403, 403),
        "stranger": (401, 401, 401),
    }
    assert "by client billing at 127.0.0.1" in caplog.text
    refused = write(shared, "PUT", "t1", {"email": "b@x"}, by("audit"))
    assert refused.json["type"] == "urn:compactory:problem:forbidden"
    assert "client audit may not write directory 'tenants'" in refused.json["detail"]


def test_an_outcome_is_shown_to_who_may_read_its_directory(serve: Serve, topics: Topics) -> None:
    created = topics.create()
    tenants = Directory("tenants", topic=topics.create(), rules=WriteRules(outcomes=("created",)))
    clients = (
        Client(name="writer", token="writer", scopes={"tenants": Scope.WRITE}),
        Client(name="reader", token="reader", scopes={"*": Scope.READ}),
    )
    serving = serve(tenants, Directory("created", topic=created), access=Access(Tokens(clients=clients)))
    event = write(serving, "PUT", "t1", {}, by("writer")).headers["etag"].strip('"')
    topics.produce(created, ("t2", json.dumps({"event": event, "iban": "secret"})))
    place = f"/v1/directories/tenants/outcomes/t2?event={quote(event)}"
    eventually(lambda: serving.ask(place, headers=by("reader")).json.get("state") == "created")
    refused = serving.ask(place, headers=by("writer"))
    assert (refused.status, refused.problem) == (403, "forbidden")
    assert "may not read directory 'created'" in refused.json["detail"]


def test_no_route_of_a_directory_is_open_to_a_client_without_a_scope_on_it(shared: Serving) -> None:
    """However the path is spelled; those that are not about one directory tell a client no values."""
    document = shared.ask("/openapi.json", headers=by("billing")).json
    routes = [(path, method.upper()) for path, methods in document["paths"].items() for method in methods]
    routes = [(path, method) for path, method in routes if "{directory}" in path]
    assert len(routes) >= 12
    for path, method in routes:
        for directory in ("acquirers", "%61cquirers"):
            place = path.format(directory=directory, key="good", ranges="0", name="feed")
            assert shared.ask(place, method, headers=by("billing")).status == 403, place
    assert shared.ask("/v1/directories%2Facquirers/watch", headers=by("billing")).status in (403, 404)
    assert shared.ask("/v1/directories", headers=by("nothing")).status == 200


def test_bad_records_are_for_who_rules_their_directory(shared: Serving) -> None:
    def listed(client: str) -> dict[str, bool]:
        errors = shared.ask("/v1/errors", headers=by(client)).json["errors"]
        return {error["directory"]: "value_base64" in error for error in errors}

    assert listed("billing") == {"tenants": False}
    assert listed("support") == {"tenants": True, "acquirers": False}
    assert listed("audit") == {"tenants": False, "acquirers": True}
    assert listed("nothing") == {}

    def skip(client: str, body: bytes | None = None) -> int:
        return shared.ask("/v1/errors:skip", "POST", body=body, headers=by(client) | JSON).status

    assert skip("billing") == skip("nothing") == 403
    assert skip("support", b'{"errors": [{"directory": "acquirers", "partition": 0, "offset": 0}]}') == 403
    assert skip("support") == 200
    assert listed("audit") == {"acquirers": True}


def test_a_server_that_does_not_own_the_directory_forwards(serve: Serve, tenants: Directory[Any]) -> None:
    """Guarantee 18: two servers share one owner; when it goes, the other takes over with all that was written."""
    first_server, second_server = serve(tenants, access=LOCAL), serve(tenants, access=LOCAL)
    first = write(first_server, "PUT", "t1", {"email": "a@x"}, {"Idempotency-Key": "k"})
    owner, next_owner = (
        first_server.server.app.writes._batchers["tenants"].writer,
        second_server.server.app.writes._batchers["tenants"].writer,
    )
    eventually(lambda: next_owner.owner)  # until it has read who the owner is, it would take over
    assert write(second_server, "PUT", "t2", {"email": "a@x"}).status == 409
    assert write(second_server, "PUT", "t2", {"email": "b@x"}).status == 201
    batches = [
        batch(second_server, [put("t4", "d@x")], {"Idempotency-Key": "b"}, cursor={"next": "1"}) for _ in range(2)
    ]
    assert [answer.status for answer in batches] == [200, 200]
    assert batches[0].json == batches[1].json
    assert batch(second_server, [put("t5", "a@x")]).json["errors"][0]["index"] == 0
    assert (owner.owns, next_owner.owns) == (True, False)
    first_server.stop()
    stored = batch(second_server, [put("t5", "e@x")], cursor={"next": "2"})
    assert (stored.status, stored.json["cursor"]) == (409, "1")
    repeated = write(second_server, "PUT", "t1", {"email": "a@x"}, {"Idempotency-Key": "k"})
    assert (repeated.status, repeated.headers["etag"], repeated.body) == (201, first.headers["etag"], first.body)
    assert write(second_server, "PUT", "t3", {"email": "b@x"}).status == 409
    assert next_owner.owns


def test_servers_that_missed_each_other_once_forward_again(
    serve: Serve, tenants: Directory[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each would take over from the other again and again, for good."""

    async def unreached(*_: object) -> None:
        raise OwnerUnreached("for a moment")

    def learned(serving: Serving, owner: Serving) -> bool:
        announced = writers[serving].owner
        return announced is not None and announced.url == owner.server.app.writes.url

    first_server, second_server = serve(tenants, access=LOCAL), serve(tenants, access=LOCAL)
    writers = {server: server.server.app.writes._batchers["tenants"].writer for server in (first_server, second_server)}
    assert write(first_server, "PUT", "t1", {"email": "a@x"}).status == 201
    for owner, server in ((first_server, second_server), (second_server, first_server)):
        eventually(partial(learned, server, owner))
        with monkeypatch.context() as patched:
            patched.setattr(server.server.app.writes._forwarding, "send", unreached)
            assert write(server, "PUT", "t1", {"email": "a@x"}).status == 200
        assert writers[server].owns
    eventually(partial(learned, second_server, first_server))
    assert write(second_server, "PUT", "t1", {"email": "b@x"}).status == 200
    assert (writers[first_server].owns, writers[second_server].owns) == (True, False)
