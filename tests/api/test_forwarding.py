"""Writes on their way to another server: who gets them, what is proven before, and what comes back."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from compactory import ConfigError, Directory, Index
from compactory_api.http.access import Access, Client, Scope, Tokens
from compactory_api.http.problem import Unauthorized
from compactory_api.mastered import forwarding
from compactory_api.mastered.credential import FORWARDED, Answer, Credential, Signer
from compactory_api.mastered.forwarding import ForwardedRequest, Forwarding, OwnerSilent, OwnerUnreached
from compactory_api.mastered.servers import Servers
from compactory_api.mastered.write_batcher import Result
from compactory_mastered import Operation, WriteRules
from tests.api.owners import Program, Request, listening, signed
from tests.api.serving import SERVERS, Serving, ask
from tests.api.serving import Answer as Got
from tests.store.topics import Topics, eventually

Serve = Callable[..., Serving]
JSON = {"Content-Type": "application/json"}
TOKEN = {"Authorization": "Bearer writer"}
WRITER = Access(Tokens(write="writer"))
LOCAL = Access(anonymous=Scope.WRITE)
REQUEST = ForwardedRequest(
    caller="client billing at 10.0.0.1", method="PUT", directory_path="/v1/directories/tenants",
    subpath="entries/a%2Fb",
    headers={"content-type": "application/json", "authorization": "Bearer writer", "cookie": "c"}, body=b"{}",
)  # fmt: skip


@pytest.fixture
def tenants(topics: Topics) -> Directory[Any]:
    rules = WriteRules(unique=(("email",),))
    return Directory("tenants", topic=topics.create(), indexes=[Index("email", unique=True)], rules=rules)


def put(serving: Serving, key: str, body: bytes = b"{}", **headers: str) -> Got:
    return serving.entry("tenants", key, method="PUT", body=body, headers=JSON | TOKEN | headers)


def announce(serving: Serving, topics: Topics, tenants: Directory[Any], url: str) -> None:
    """Take a server's ownership away, and have it read that the owner is elsewhere."""
    writer = serving.server.app.writes._batchers["tenants"].writer
    writer._give_up_ownership()
    topics.produce(f"{tenants.topic}-writes", ("owner", f'{{"url": "{url}"}}'))
    eventually(lambda: writer.owner is not None and writer.owner.url == url)


def sent(*urls: str, own_url: str = "http://127.0.0.1:1", request: ForwardedRequest = REQUEST) -> list[Any]:
    """Send a request to owners, one after the other; return their answers."""

    async def sending() -> list[Answer]:
        way = Forwarding(SERVERS, own_url)
        try:
            return [await way.send(url, request) for url in urls]
        finally:
            await way.aclose()

    return asyncio.run(sending())


def owner(program: Program, request: Request) -> Answer:
    """Answer as the owner would."""
    if request.method == "GET":
        return signed(request, program.url, (204, {}, b""))
    return signed(request, program.url, (201, {"etag": '"x-0-1"', "content-type": "application/json"}, b'{"a": 1}'))


def stranger(_program: Program, _request: Request) -> Answer:
    return 201, {"compactory-owner": "1", "location": "https://evil.example", "content-type": "text/html"}, b"<script>"


def test_another_program_at_the_owners_address_gets_nothing_of_a_write(
    serve: Serve, tenants: Directory[Any], topics: Topics
) -> None:
    serving = serve(tenants, access=WRITER)
    with listening(stranger) as impostor:
        announce(serving, topics, tenants, impostor.url)
        answer = put(serving, "t1", b'{"email": "secret"}')
    assert (answer.status, answer.json) == (201, {"email": "secret"})
    assert "location" in answer.headers
    assert "evil" not in answer.headers["location"]
    [request] = impostor.requests
    assert (request.method, request.path, request.body) == ("GET", "/v1/directories/tenants/owner", b"")
    assert "authorization" not in request.headers
    assert "secret" not in str(request)
    assert serving.server.app.writes._batchers["tenants"].writer.owns


def test_a_program_that_passes_the_question_on_to_a_server_is_not_the_owner(
    serve: Serve, tenants: Directory[Any]
) -> None:
    serving = serve(tenants, access=LOCAL)
    assert put(serving, "t1").status == 201

    def relay(_program: Program, request: Request) -> Answer:
        response = ask(serving.port, request.path, request.method, headers=request.headers)
        assert response.status == 204
        return response.status, {"compactory-owner": response.headers["compactory-owner"]}, response.body

    with listening(relay) as impostor, pytest.raises(OwnerUnreached, match="not signed"):
        sent(impostor.url)
    assert [request.method for request in impostor.requests] == ["GET"]


def test_an_address_that_is_not_configured_is_never_asked(
    serve: Serve, tenants: Directory[Any], topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    serving = serve(tenants, access=WRITER)
    with listening(owner, host="127.0.0.2") as elsewhere:
        announce(serving, topics, tenants, elsewhere.url)
        assert put(serving, "t1").status == 201
    assert elsewhere.requests == []
    assert f"{elsewhere.url} is not in [http] servers (127.0.0.1)" in caplog.text


def test_an_owner_gets_the_write_without_the_clients_token_and_known_headers_come_back() -> None:
    def answer(program: Program, request: Request) -> Answer:
        status, headers, body = owner(program, request)
        return status, headers | {"set-cookie": "a=b", "x-other": "c"}, body

    with listening(answer) as program:
        [(status, headers, body)] = sent(program.url)
    assert (status, headers, body) == (201, {"content-type": "application/json", "etag": '"x-0-1"'}, b'{"a": 1}')
    assert [(request.method, request.path) for request in program.requests] == [
        ("GET", "/v1/directories/tenants/owner"), ("PUT", "/v1/directories/tenants/entries/a%2Fb"),
    ]  # fmt: skip
    for request in program.requests:
        assert not {"authorization", "cookie"} & request.headers.keys()


def test_an_answer_that_was_changed_on_its_way_is_none() -> None:
    def changing(program: Program, request: Request) -> Answer:
        status, headers, body = owner(program, request)
        return status, headers, body.replace(b"1", b"2")

    with listening(changing) as program, pytest.raises(OwnerSilent, match="not signed"):
        sent(program.url)


def test_a_program_whose_answer_has_no_end_is_left_at_once() -> None:
    for headers in ("Connection: close", "Transfer-Encoding: chunked", "Content-Length: 7"):
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:

            def answer(listener: socket.socket = listener, headers: str = headers) -> bytes:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(20)
                    connection.recv(65536)
                    connection.sendall(f"HTTP/1.1 200 OK\r\n{headers}\r\n\r\n2\r\nab\r\n".encode())
                    return connection.recv(1)

            answered = threads.submit(answer)
            with pytest.raises(OwnerUnreached, match="no server with the common servers_secret"):
                sent(f"http://127.0.0.1:{listener.getsockname()[1]}")
            assert answered.result() == b""


def test_an_owner_is_reached_behind_a_path_and_each_owner_keeps_its_connection() -> None:
    def behind(program: Program, request: Request) -> Answer:
        answer = (204, {}, b"") if request.method == "GET" else (200, {}, b"{}")
        return signed(request, f"{program.url}/base", answer, request.path.removeprefix("/base"))

    with listening(behind) as first_owner, listening(behind) as second_owner:
        urls = [f"{program.url}/base" for program in (first_owner, second_owner) * 3]
        assert [status for status, _, _ in sent(*urls)] == [200] * 6
    for program in (first_owner, second_owner):
        assert {request.path.partition("/v1")[0] for request in program.requests} == {"/base"}
        assert len({request.connection for request in program.requests}) == 1


def test_the_credential_holds_for_one_request_only() -> None:
    signer = Signer(SERVERS.secret)
    request = ("PUT", "/v1/directories/tenants/entries/t1", {"if-match": '"a"'})
    credential = Credential.of("client billing", b"{}")
    header = signer.header(credential, *request)
    assert signer.credential(header, *request) == credential
    assert SERVERS.secret not in header
    credential.check_body(b"{}")
    with pytest.raises(Unauthorized, match="another body"):
        credential.check_body(b"{ }")
    other_requests: list[tuple[str, str, dict[str, str]]] = [
        ("DELETE", *request[1:]), (request[0], request[1] + "2", request[2]), (*request[:2], {}),
        (*request[:2], {"if-match": '"a"', "idempotency-key": "k"}),
    ]  # fmt: skip
    for fields in other_requests:
        with pytest.raises(Unauthorized, match="was not signed"):
            signer.credential(header, *fields)
    for forged in (Signer("x" * 32).header(credential, *request), "1", "", f"é.{header}", header[:-1]):
        with pytest.raises(Unauthorized, match="was not signed"):
            signer.credential(forged, *request)
    for until in (credential.until - 61, credential.until + 61):
        stale = signer.header(replace(credential, until=until), *request)
        with pytest.raises(Unauthorized, match="too old, or the servers' clocks differ"):
            signer.credential(stale, *request)


def test_servers_are_named_and_secret() -> None:
    servers = Servers(secret="s" * 32, hosts=("10.0.0.0/8", ".svc.local", "one", "::1"))
    assert "s" * 32 not in repr(servers)
    for good in ("http://10.2.3.4:80", "https://a.svc.local", "http://one:8080/base", "http://[::1]"):
        assert servers.problem_of(good, "http://one") is None
    for bad in (
        "http://11.2.3.4",
        "http://svc.local",
        "http://xsvc.local",
        "http://one.evil",
        "http://169.254.169.254",
    ):
        assert "is not in [http] servers" in str(servers.problem_of(bad, "http://one"))
    assert "has no https" in str(servers.problem_of("http://one", "https://one"))
    for secret, hosts in (("short", "one"), ("s" * 32, ""), ("s" * 32, None), (None, "one"), ("s" * 32, "10.0.0.1/8")):
        with pytest.raises(ConfigError):
            Servers.parse(secret, hosts)


def test_a_server_whose_own_address_is_not_configured_does_not_start(serve: Serve, tenants: Directory[Any]) -> None:
    servers = Servers(secret=SERVERS.secret, hosts=("10.0.0.0/8",))
    serving = serve(tenants, access=LOCAL, servers=servers, ready=False)
    eventually(lambda: serving.ended)
    assert isinstance(serving.failure, ConfigError)
    assert "set [http] advertised" in str(serving.failure)


def test_the_owner_need_not_know_the_token_and_audits_the_client(
    serve: Serve, tenants: Directory[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Guarantee 18: what one server admits, the owner writes; refusals come back as they are."""
    clients = (Client(name="billing", token="billing", scopes={"tenants": Scope.WRITE}),)
    owning_server, other_server = serve(tenants, access=WRITER), serve(tenants, access=Access(Tokens(clients=clients)))
    assert put(owning_server, "t0").status == 201
    eventually(lambda: other_server.server.app.writes._batchers["tenants"].writer.owner)
    with caplog.at_level(logging.INFO, "compactory.audit"):
        answer = put(other_server, "a%2Fb%22.", b'{"email": "a"}', Authorization="Bearer billing")
    assert (answer.status, answer.json) == (201, {"email": "a"})
    assert "put of 'a/b\".' in tenants" in caplog.text
    assert "by client billing at 127.0.0.1 through another server at 127.0.0.1" in caplog.text
    assert put(other_server, "t2", b'{"email": "a"}', Authorization="Bearer billing").problem == "conflict"
    lines = b'{"op": "put", "key": "t3", "value": {}}\n' * 3
    bulk = other_server.ask("/v1/directories/tenants/entries:bulkWrite", "POST", body=lines,
                   headers={"Content-Type": "application/x-ndjson", "Authorization": "Bearer billing"})  # fmt: skip
    assert (bulk.status, len(bulk.body.splitlines())) == (200, 3)
    assert (
        other_server.entry("tenants", "t3", method="DELETE", headers={"Authorization": "Bearer billing"}).status == 204
    )
    assert not other_server.server.app.writes._batchers["tenants"].writer.owns


def test_nobody_forwards_to_a_server_without_its_secret(serve: Serve, tenants: Directory[Any]) -> None:
    alone, serving = serve(tenants, access=LOCAL, servers=None), serve(tenants, access=LOCAL)
    for server, reason in ((alone, "it has no servers_secret"), (serving, "was not signed")):
        refused = put(server, "t1", **{FORWARDED: "1"})
        assert (refused.status, refused.problem) == (401, "unauthorized")
        assert reason in refused.json["detail"]
    signer = Signer(SERVERS.secret)
    for path, method in (("/v1/directories/tenants/entries/t1", "GET"), ("/v1/status", "GET")):
        header = signer.header(Credential.of("a server", b""), method, path, {})
        refused = serving.ask(path, method, headers={FORWARDED: header})
        assert (refused.status, refused.problem) == (404, "no-resource")


def test_servers_without_a_secret_write_in_turns_and_say_so(
    serve: Serve, tenants: Directory[Any], caplog: pytest.LogCaptureFixture
) -> None:
    first_server, second_server = (serve(tenants, access=LOCAL, servers=None) for _ in range(2))
    assert [put(server, "t1").status for server in (first_server, second_server, first_server)] == [201, 200, 200]
    assert "set COMPACTORY_HTTP_SERVERS" in caplog.text


@pytest.fixture
def quick_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner is soon asked again whether it is alive, and has long to answer, for the machine may be busy."""
    monkeypatch.setattr(forwarding, "_PROOF_TIMEOUT", 60.0)
    monkeypatch.setattr(forwarding, "_PROOF_INTERVAL", 0.05)


@pytest.mark.usefixtures("quick_proofs")
def test_an_owner_whose_kafka_is_slow_stays_the_owner(serve: Serve, tenants: Directory[Any]) -> None:
    owning_server, other_server = serve(tenants, access=LOCAL), serve(tenants, access=LOCAL)
    assert put(owning_server, "t1").status == 201
    batcher, writer = (
        owning_server.server.app.writes._batchers["tenants"],
        other_server.server.app.writes._batchers["tenants"].writer,
    )
    eventually(lambda: writer.owner)
    submit, proofs = batcher.submit, list[int]()
    answer_forwarded: Callable[..., Awaitable[Answer]] = owning_server.server.app._forwarded_writes.answer
    proven = threading.Event()

    async def answering(scope: Any, receive: Any) -> Answer:
        proofs.append(scope["method"] == "GET")
        if sum(proofs) == 4:
            proven.set()
        return await answer_forwarded(scope, receive)

    def slowly(operations: Sequence[Operation], caller: str) -> asyncio.Future[list[Result]]:
        async def later() -> list[Result]:
            while not proven.is_set():
                await asyncio.sleep(0.01)
            return await submit(operations, caller)

        return asyncio.ensure_future(later())

    batcher.submit = slowly  # type: ignore[method-assign]
    owning_server.server.app._forwarded_writes.answer = answering  # type: ignore[method-assign, assignment]
    assert put(other_server, "t2").status == 201
    assert proven.is_set(), "nobody asked whether the owner is alive"
    assert not writer.owns


@pytest.mark.usefixtures("quick_proofs")
def test_of_a_write_whose_owner_went_the_outcome_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    is_gone, is_over = threading.Event(), threading.Event()

    def going(program: Program, request: Request) -> Answer:
        if request.method == "GET" and not is_gone.is_set():
            return owner(program, request)
        monkeypatch.setattr(forwarding, "_PROOF_TIMEOUT", 0.1)  # the write has come: no proof will
        is_gone.set()
        is_over.wait()
        return 500, {}, b""

    with listening(going) as program:
        with pytest.raises(OwnerSilent) as silent:
            sent(program.url)
        is_over.set()
    assert not isinstance(silent.value, OwnerUnreached)


def test_what_is_not_the_owner_gets_no_write() -> None:
    def another(program: Program, request: Request) -> Answer:
        return signed(request, program.url, (503, {}, b'{"type": "urn:compactory:problem:not-owner"}'))

    with listening(another) as program, pytest.raises(OwnerUnreached, match="another server writes"):
        sent(program.url)
    assert [request.method for request in program.requests] == ["GET"]
