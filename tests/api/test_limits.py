"""Limits on a client without a token: sockets that send too much, too slowly, or nothing."""

from __future__ import annotations

import re
import resource
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from compactory_api.http import limits
from compactory_api.http.listen import Listen
from compactory_api.ops.listener import Listener
from tests.api.serving import Serving, ask
from tests.store.topics import Topics, eventually

Ports = Callable[[], int]


@pytest.fixture(params=["api", "listener"])
def port(request: pytest.FixtureRequest, serve: Callable[..., Serving]) -> Iterator[int]:
    """The port of the HTTP API, and that of a worker's listener: both have the same limits."""
    if request.param == "api":
        yield serve(request.getfixturevalue("topics").create(), ready=False).port
        return
    with Listener(Listen("127.0.0.1", 0), []) as listener:
        yield listener.address.port


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
def test_a_request_that_offers_another_protocol_is_answered_with_its_body(
    serve: Callable[..., Serving], topics: Topics, upgrade: str
) -> None:
    """Java's HttpClient offers HTTP/2 with each request."""
    topic = topics.create()
    topics.produce(topic, ("a", "{}"))
    serving = serve(topic)
    head = f"Host: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {upgrade}\r\nHTTP2-Settings: AAMA\r\n"
    whole = b'{"keys":["a"]}'
    place = f"POST /v1/directories/{topic}/entries:batchGet HTTP/1.1\r\n{head}Content-Type: application/json\r\n"
    by_length = f"{place}Content-Length: {len(whole)}\r\n\r\n".encode()
    chunked = f"{place}Transfer-Encoding: chunked\r\n\r\n".encode(), b"%x\r\n%b\r\n0\r\n\r\n" % (len(whole), whole)
    get = f"GET /v1/directories/{topic}/entries/a HTTP/1.1\r\n{head}\r\n".encode()
    with connected(serving.port) as connection:
        for parts in ((by_length + whole,), (by_length, whole), chunked, (get + get,)):
            for part in parts:
                connection.sendall(part)
                assert serving.ask("/livez").status == 200  # so that the server has read the part
            received = b""
            while received.count(b"HTTP/1.1 200 OK") < parts[0].count(b" HTTP/1.1") or not received.endswith(b"}"):
                part = connection.recv(65536)
                assert part, received
                assert b" 400 " not in part, part
                received += part


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def rest(connection: socket.socket) -> bytes:
    """Return the bytes until the server closes the connection."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def sent(connection: socket.socket, parts: Iterator[bytes]) -> int:
    """Send until the server closes; how many bytes it let through."""
    total = 0
    try:
        for part in parts:
            connection.sendall(part)
            total += len(part)
    except (BrokenPipeError, ConnectionResetError):
        pass
    return total


def status(answer: bytes) -> int:
    match = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    assert match, answer[:200]
    return int(match[1])


def endless(begin: bytes, part: bytes) -> Iterator[bytes]:
    """Beginning, and 200 MB of the same."""
    yield begin
    for _ in range((200 << 20) // len(part)):
        yield part


HEAD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (HEAD + b"X: ", b"x" * 65536),
        (b"GET /", b"x" * 65536),
        (HEAD, b"X-Many: 1\r\n" * 6000),
    ],
    ids=["endless header", "endless path", "endless headers"],
)
def test_a_head_without_end_is_refused_before_it_costs_anything(port: int, begin: bytes, part: bytes) -> None:
    usage_before = resource.getrusage(resource.RUSAGE_SELF)
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(connected(port))
            assert sent(connection, endless(begin, part)) < 20 << 20  # what lies in the sockets' buffers included
        assert ask(port, "/livez").status == 200
    usage_after = resource.getrusage(resource.RUSAGE_SELF)
    assert usage_after.ru_utime - usage_before.ru_utime < 2
    assert usage_after.ru_maxrss - usage_before.ru_maxrss < 40 << 10


def test_heads_that_are_too_large_get_an_answer_and_those_that_are_not_an_entry(port: int) -> None:
    for lines in (b"X: " + b"x" * 70_000 + b"\r\n", b"X: 1\r\n" * 400, b"X: " + b"x" * 9000 + b"\r\n" * 1):
        with connected(port) as connection:
            connection.sendall(HEAD + lines + b"Connection: close\r\n\r\n")
            assert status(rest(connection)) == (200 if len(lines) == 9005 else 431)


def test_a_request_that_drips_is_ended_while_others_are_answered(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_SECONDS", 1.0)
    with connected(port) as head, connected(port) as body:
        head.sendall(HEAD)
        body.sendall(
            b"POST /v1/directories/d/entries:batchGet HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
        )
        answers: dict[socket.socket, bytes] = {}

        def drip() -> bool:
            assert ask(port, "/livez").status == 200
            for connection in {head, body} - answers.keys():
                sent(connection, iter([b"x"]))
                if select.select([connection], [], [], 0.02)[0]:
                    answers[connection] = rest(connection)
            return len(answers) == 2

        eventually(drip, 15)
        assert status(answers[head]) == 408
        assert answers[body].count(b"HTTP/1.1 ") <= 1


def test_idle_connections_make_room_for_new_ones(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CONNECTIONS", 20)
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(port)) for _ in range(100)]
        assert ask(port, "/livez").status == 200
        assert rest(connections[0]) == b"", "the first one had to go"
        for connection in connections[-3:]:
            connection.sendall(HEAD + b"Connection: close\r\n\r\n")
            assert status(rest(connection)) == 200


def test_a_connection_that_says_nothing_is_closed(
    serve: Callable[..., Serving], topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "IDLE_SECONDS", 0.5)
    with connected(serve(topics.create(), ready=False).port) as silent:
        silent.sendall(b"\r\n")
        assert rest(silent) == b""


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (b"", b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        (b"1;x=", b"x" * 65536),
        (b"0\r\n", b"T: 1\r\n" * 10_000),
    ],
    ids=["chunks", "chunk extension", "trailers"],
)
def test_a_body_without_end_is_not_read_to_it(
    serve: Callable[..., Serving], topics: Topics, begin: bytes, part: bytes
) -> None:
    serving = serve(topics.create(), ready=False)
    with connected(serving.port) as connection:
        assert sent(connection, endless(CHUNKED + begin, part)) < 40 << 20
        answer = rest(connection)
        assert answer.count(b"HTTP/1.1 ") <= 1, "a second answer to one request"
    assert serving.ask("/livez").status == 200


def test_requests_that_come_together_are_counted_one_by_one(serve: Callable[..., Serving], topics: Topics) -> None:
    port = serve(topics.create(), ready=False).port
    large = HEAD + b"X: " + b"x" * 70_000 + b"\r\n\r\n"
    with connected(port) as small_requests, connected(port) as large_request:
        small_requests.sendall((HEAD + b"\r\n") * 1999 + HEAD + b"Connection: close\r\n\r\n")
        assert rest(small_requests).count(b"HTTP/1.1 200") == 2000
        large_request.sendall(HEAD + b"\r\n" + large)
        assert b"HTTP/1.1 200" not in rest(large_request).partition(b"HTTP/1.1 200")[2]


def test_a_body_that_drips_while_it_is_waited_for_is_ended(
    serve: Callable[..., Serving], topics: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "REQUEST_SECONDS", 0.5)
    topic = topics.create()
    serving = serve(topic, ready=False)
    head = f"POST /v1/directories/{topic}/entries:batchGet HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
    with connected(serving.port) as connection:
        connection.sendall(head.encode() + b"{")
        assert status(rest(connection)) == 408
    eventually(lambda: not serving.server._uvicorn.server_state.tasks)
    assert not caplog.records


def test_a_bad_request_behind_a_good_one_does_not_answer_it(serve: Callable[..., Serving], topics: Topics) -> None:
    topic = topics.create()
    serving = serve(topic)
    waits = (
        f"GET /v1/directories/{topic}/entries/a HTTP/1.1\r\nHost: localhost\r\n"
        f"Compactory-Min-Offset: {topic}:0:5\r\nPrefer: wait=2\r\n\r\n"
    )
    with connected(serving.port) as connection:
        connection.sendall(waits.encode())
        connection.sendall(b"\x00nonsense\r\n\r\n")
        assert rest(connection) == b""
