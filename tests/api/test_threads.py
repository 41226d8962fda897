"""Requests that wait do not stop others: work that blocks has threads of its own, apart by what it waits for."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from compactory import Directory, testing
from compactory.errors import WaitTimeout
from compactory_api.http import limits
from compactory_api.http.access import Access
from tests.api.serving import Serving
from tests.store.topics import eventually

MANY = 40  # more than there are threads


@pytest.fixture
def busy() -> Iterator[tuple[Serving, threading.Event]]:
    """Return a server, and an event. The store's reader thread waits for the event when it decodes the entry "slow"."""
    free, reached = threading.Event(), threading.Event()

    def decode(value: bytes) -> object:
        document = json.loads(value)
        if document == {"slow": True}:
            reached.set()
            free.wait(30)
        return document

    store = testing.store({Directory("d", decode=decode): {"a": {"n": 1}}}, start=False)
    serving = Serving(store, Access())
    serving.wait_ready()

    def put() -> None:
        with suppress(WaitTimeout):
            store.put("d", "slow", {"slow": True})

    threading.Thread(target=put, daemon=True).start()
    assert reached.wait(10)
    yield serving, free
    free.set()
    serving.stop()


def _answers_all(serving: Serving) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/v1/status", "/v1/directories/d/entries/a"):
        assert serving.ask(path, timeout=5).status == 200, path


def test_requests_that_wait_for_the_reader_stop_no_others(busy: tuple[Serving, threading.Event]) -> None:
    serving, free = busy
    with ExitStack() as stack:
        for _ in range(MANY):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", serving.port)))
            connection.sendall(b"GET /v1/directories/d/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _answers_all(serving)
        assert serving.batch("d", {"keys": ["a"]}).json["found"] == {"a": {"n": 1}}
        assert serving.ask("/v1/directories/d/entries", timeout=5).status == 200
        free.set()
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_reads_that_take_long_stop_no_probes(busy: tuple[Serving, threading.Event]) -> None:
    serving, free = busy
    threads = serving.server.app.threads
    for _ in range(MANY):
        threads.reads.executor.submit(free.wait)
        threads.waits.executor.submit(free.wait)
    _answers_all(serving)


def test_calls_of_clients_that_are_gone_are_limited(
    busy: tuple[Serving, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving, free = busy
    monkeypatch.setattr(limits, "MOST_CONNECTIONS", 20)
    for _ in range(MANY):
        serving.server.app.threads.reads.executor.submit(free.wait)
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", serving.port), timeout=5) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends by a reset
            connection.sendall(b"GET /v1/directories/d/entries HTTP/1.1\r\nHost: localhost\r\n\r\n")
            _answers_all(serving)
    refused = serving.ask("/v1/directories/d/entries", timeout=5)
    assert (refused.status, refused.problem) == (503, "overloaded")
    free.set()
    eventually(lambda: serving.ask("/v1/directories/d/entries", timeout=5).status == 200)
