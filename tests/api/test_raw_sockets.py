"""A server in a process of its own, and clients that send whatever bytes they like.

Whatever is sent, it is answered or its connection closes at once, other clients are served, and memory stays flat.
"""

from __future__ import annotations

import json
import random
import select
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from compactory_api.http.listen import Listen
from compactory_api.ops.listener import Listener
from tests.api.serving import ask
from tests.store.topics import eventually

TOKEN = "a-token-of-the-tests"
ENTRY = "/v1/directories/d/entries/a"
PROGRAM = f"""
import resource
from compactory import testing
from compactory_api.http import limits
from compactory_api.http.listen import Listen
from compactory_api.http.access import Access, Tokens
from compactory_api.server import Server

resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))  # a test that fails must not take the machine's memory
limits.IN_FLIGHT_BYTES = 64 << 20
large = {{f"large{{number}}": {{"text": "x" * 500_000}} for number in range(20)}}
store = testing.store({{"d": {{"a": {{"n": 1}}, **large}}}}, start=False)
listening = Listen("127.0.0.1", 0).bind()
print(listening.getsockname()[1], flush=True)
Server(store, access=Access(Tokens(read={TOKEN!r}))).run(listening)
"""
MIB = 1 << 20


class Peer:
    """A server on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def seconds(self) -> float:
        """Return how long a probe takes now; it has to succeed."""
        began = time.monotonic()
        assert ask(self.port, "/livez", timeout=5).status == 200
        return time.monotonic() - began

    def open(self, receive_bytes: int | None = None) -> socket.socket:
        """Return a new connection, whose kernel keeps about ``receive_bytes`` that nobody reads."""
        connection = socket.socket()
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(5)
        connection.connect(("127.0.0.1", self.port))
        return connection


class Program(Peer):
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        super().__init__(port)
        self._process = process

    def memory(self) -> int:
        """Return the bytes of memory that are resident."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) << 10


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    """Start one server for all tests of this file."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        running = Program(process, int(process.stdout.readline()))
        deadline = time.monotonic() + 30
        while ask(running.port, "/readyz").status != 200:
            assert time.monotonic() < deadline
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert ask(running.port, ENTRY, headers=headers).status == 200
        yield running
    finally:
        process.kill()
        process.communicate()


METHODS = [
    *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PRI", "SOURCE", "M-SEARCH"),
    *("PROPFIND", "ANNOUNCE", "get", "G E T", "X" * 40, ""),
]
TARGETS = [
    *("/livez", "/metrics", ENTRY, "/v1/directories/d/entries:batchGet", "/v1/errors", "/%zz", "/a?b=c#d", "//x//"),
    *("http://localhost/livez", "http://localhost", "https://u:p@h:99999/x", "localhost:443", "x:y", "*", "?", "", "é"),
    *("/" + "a" * 3000, "/a b", "\x00"),
]
VERSIONS = ["HTTP/1.1"] * 8 + ["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/9.9", "HTTP/1.10", "http/1.1", "FTP/1.1", ""]
HEADERS = [
    *("Connection: close", "Connection: keep-alive", "Connection: Upgrade", "Connection: Upgrade, HTTP2-Settings"),
    *(
        "Upgrade: h2c",
        "Upgrade: websocket",
        "upgrade: a, b",
        "Upgrade:",
        "HTTP2-Settings: AAMA",
        "Expect: 100-continue",
    ),
    *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Content-Length: 3"),
    *("Content-Length: 0", "Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 1, 2"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked, identity"),
    *("Authorization: Bearer x", f"Authorization: Bearer {TOKEN}", "X: " + "x" * 9000, "X: " + "x" * 80_000, " folded"),
    *("Bad Name: 1", ": nothing", "X: \x00", "Content-Type: application/json", "Upgrade : h2c"),
]
BODIES = [
    *("", "abc", "0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\n"),
    *("ffffffffffffffffff\r\n", "zz\r\n"),
]
WHOLE = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _request(chosen: random.Random) -> str:
    headers = chosen.sample(HEADERS, chosen.choice([0, 1, 1, 2, 3, 5]))
    if chosen.random() < 0.8:
        headers.append("Host: localhost")
    first = f"{chosen.choice(METHODS)} {chosen.choice(TARGETS)} {chosen.choice(VERSIONS)}"
    return "\r\n".join([first, *headers, "", chosen.choice(BODIES)])


def _parts(chosen: random.Random) -> list[bytes]:
    """Return what one client sends: a few requests, sometimes cut, in one or more writes."""
    requests = [_request(chosen) if chosen.random() < 0.7 else WHOLE for _ in range(chosen.choice([1, 1, 2, 3, 30]))]
    content = "".join(requests).encode("latin-1")
    if chosen.random() < 0.3:
        content = content[: chosen.randrange(len(content) + 1)]
    if chosen.random() < 0.1:
        content += chosen.randbytes(chosen.randrange(2000))
    cuts = sorted(chosen.randrange(len(content) + 1) for _ in range(chosen.choice([0, 0, 1, 3])))
    return [content[start:end] for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True)]


def _answer(peer: Peer, parts: list[bytes], seconds: float) -> bytes:
    """Send the parts, end this side, and return what comes until the server closes. Fails where it takes longer."""
    answer = b""
    with peer.open() as connection:
        try:
            for part in parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # the server has closed it already
            pass
        deadline = time.monotonic() + seconds
        try:
            while True:
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                if not (part := connection.recv(1 << 16)):
                    return answer
                answer += part
        except ConnectionResetError:
            return answer
        except TimeoutError:
            pytest.fail(f"neither an answer nor the end within {seconds:g} s: {parts!r}")


def _attack(peer: Peer, chosen: random.Random) -> Iterator[tuple[list[bytes], bytes]]:
    """Yield what was sent and what came. Each has to come within a second, or 20 times what a probe takes."""
    slowest = 0.0
    for number in range(500):
        if number % 20 == 0:
            slowest = max(slowest, peer.seconds())
        parts = _parts(chosen)
        yield parts, _answer(peer, parts, max(1.0, 20 * slowest))
    peer.seconds()


def test_any_bytes_are_answered_or_end_their_connection(program: Program, seeded: random.Random) -> None:
    _answer(program, [WHOLE.encode()], 5)
    memory_before = program.memory()
    for parts, answer in _attack(program, seeded):
        statuses = [line[9:12] for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
        assert bool(answer) == bool(statuses), (parts, answer)
        assert not {b"500", b"502"}.intersection(statuses), (parts, answer)
    assert program.memory() - memory_before < 20 * MIB


def test_any_bytes_are_answered_by_a_workers_listener_too(seeded: random.Random) -> None:
    with Listener(Listen("127.0.0.1", 0), []) as listener:
        for parts, answer in _attack(Peer(listener.address.port), seeded):
            assert b"HTTP/1.1 500 " not in answer, (parts, answer)


@pytest.mark.parametrize("target", ["/x", "localhost:443", "*", "http://localhost/livez"])
@pytest.mark.parametrize("headers", ["", "Upgrade: h2c\r\nConnection: Upgrade\r\n", "Content-Length: 3\r\n"])
def test_a_request_for_a_tunnel_is_refused(program: Program, target: str, headers: str) -> None:
    request = f"CONNECT {target} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()
    assert _answer(program, [request], 5).startswith(b"HTTP/1.1 400 ")
    assert program.seconds() < 5


@pytest.mark.parametrize("path", ["/livez", "/metrics", ENTRY, "/v1/directories/d/entries/large0"])
def test_clients_that_pipeline_and_read_nothing_cost_little(program: Program, path: str) -> None:
    """The server stops reading from them, so their own buffers fill up."""
    memory_before, highest_memory = program.memory(), 0
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode() * 1000
    with ExitStack() as stack, selectors.DefaultSelector() as writable:
        for _ in range(40):
            connection = stack.enter_context(program.open())
            connection.setblocking(False)
            writable.register(connection, selectors.EVENT_WRITE)
        deadline, sent = time.monotonic() + 3, 0
        while time.monotonic() < deadline and (ready := writable.select(0.3)):
            for key, _ in ready:
                try:
                    sent += key.fileobj.send(request)  # type: ignore[union-attr]
                except BlockingIOError:
                    continue
                except OSError:
                    writable.unregister(key.fileobj)
            highest_memory = max(highest_memory, program.memory())
        program.seconds()
        highest_memory = max(highest_memory, program.memory())
    assert highest_memory - memory_before < 120 * MIB, f"{sent >> 20} MiB were sent"
    program.seconds()


def test_pipelined_requests_are_answered_one_by_one_in_order(program: Program) -> None:
    """However many are sent at once, and where bodies are among them."""
    with program.open() as connection:
        post = (
            "POST /v1/directories/d/entries:batchGet HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        post += f"Authorization: Bearer {TOKEN}\r\nContent-Length: %d\r\n\r\n%s"
        bodies = ['{"keys":["a"]}', '{"keys":["a"],"x":"' + "y" * 100_000 + '"}']
        requests = [post % (len(bodies[number % 2]), bodies[number % 2]) for number in range(40)]
        mixed = [text for request in requests for text in (request, WHOLE * 20)]
        content = ("".join(mixed) + WHOLE.replace("Host", "Connection: close\r\nHost")).encode()
        connection.settimeout(20)
        received, sent = b"", 0
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while True:
                [(_, events)] = selector.select(20)
                if events & selectors.EVENT_WRITE:
                    sent += connection.send(content[sent : sent + 50_000])
                    if sent == len(content):
                        selector.modify(connection, selectors.EVENT_READ)
                if events & selectors.EVENT_READ:
                    if not (part := connection.recv(1 << 16)):
                        break
                    received += part
    kinds = [b"found" in part for part in received.split(b"HTTP/1.1 200 OK")[1:]]
    assert kinds == [*([True] + [False] * 20) * 40, False]


BATCH = "POST /v1/directories/d/entries:batchGet HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BATCH += f"Authorization: Bearer {TOKEN}\r\n"


def _lookup(program: Program) -> int:
    return ask(program.port, ENTRY, headers={"Authorization": f"Bearer {TOKEN}"}).status


def test_answers_that_nobody_reads_take_limited_memory_together(program: Program) -> None:
    """40 answers of 10 MB: those that fit are sent, others refused; probes and metrics are answered meanwhile."""
    memory_before = program.memory()
    body = json.dumps({"keys": [f"large{number}" for number in range(20)]})
    request = f"{BATCH}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    with ExitStack() as stack:
        begins = []
        for _ in range(40):
            connection = stack.enter_context(program.open(receive_bytes=4096))
            connection.sendall(request)
            begins.append(connection.recv(12))
        assert set(begins) == {b"HTTP/1.1 200", b"HTTP/1.1 503"}
        assert program.memory() - memory_before < 150 * MIB
        program.seconds()
        assert ask(program.port, "/metrics").status == 200
        assert ask(program.port, "/v1/status", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
    eventually(lambda: _lookup(program) == 200)


def test_bodies_that_never_end_take_limited_memory_together(program: Program) -> None:
    memory_before = program.memory()
    part = f"{BATCH}Content-Length: 8000000\r\n\r\n".encode() + b"[" * 5_000_000
    begins = []
    with ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(program.open())
            connection.sendall(part)
            program.seconds()
            if select.select([connection], [], [], 0)[0]:
                begins.append(connection.recv(12))
        assert set(begins) == {b"HTTP/1.1 503"}
        assert _lookup(program) == 200
        assert program.memory() - memory_before < 110 * MIB
    eventually(lambda: _answers_batch(program))


def _answers_batch(program: Program) -> bool:
    body = b'{"keys":["' + b"a" * 7_000_000 + b'"]}'
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    path = "/v1/directories/d/entries:batchGet"
    return ask(program.port, path, "POST", body=body, headers=headers).status == 200
