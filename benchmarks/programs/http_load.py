"""A load generator: connections kept alive on 127.0.0.1, one request at a time on each, raw sockets on uvloop.

Run as a process of its own: ``http_load PORT single|batch [KAFKA TOPIC]``; prints a line of JSON.
With a Kafka and a topic, 10,000 changes a second are written to it meanwhile (by another process). A request costs it
about half of what the bare server spends on it, so on two cores the server is what limits.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from typing import Any, cast
from urllib.request import urlopen

import uvloop

from benchmarks.stage import python

BATCH = 100  # keys
CHANGES = 10_000  # a second
CONNECTIONS = 32
ENTRIES = 100_000
SECONDS = 3.0
PURPOSE = "http"
TOPIC = f"bench-{ENTRIES}-1-{PURPOSE}"  # changed while it is measured, so it is nobody else's
_VARIANTS = 20_000  # requests, prepared beforehand


class _Connection(asyncio.Protocol):
    """Asks, waits for the whole answer, asks again."""

    def __init__(self, requests: list[bytes], took: list[float], until: float) -> None:
        self._requests = requests
        self._took = took
        self._until = until
        self._next = random.randrange(len(requests))
        self._buffer = b""
        self._began = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own kind
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self._buffer.find(b"content-length: ", 0, head) + 16
        if len(self._buffer) < head + 4 + int(self._buffer[at : self._buffer.find(b"\r", at)]):
            return
        now = time.perf_counter()
        self._took.append(now - self._began)
        if not self._buffer.startswith(b"HTTP/1.1 200"):
            self._end(ConnectionError(f"refused: {self._buffer!r}"))
            return
        self._buffer = b""
        if now < self._until:
            self._ask()
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))

    def _ask(self) -> None:
        self._next = (self._next + 1) % len(self._requests)
        self._began = time.perf_counter()
        self._transport.write(self._requests[self._next])

    def _end(self, error: Exception | None) -> None:
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
        self._transport.close()


def _requests(kind: str, port: int) -> list[bytes]:
    chosen = random.Random(7)
    path = f"/v1/directories/{TOPIC}/entries"
    host = f"Host: 127.0.0.1:{port}\r\n"
    if kind == "single":
        return [f"GET {path}/{chosen.randrange(ENTRIES)} HTTP/1.1\r\n{host}\r\n".encode() for _ in range(_VARIANTS)]
    made = []
    for _ in range(_VARIANTS // BATCH):
        body = json.dumps({"keys": [str(chosen.randrange(ENTRIES)) for _ in range(BATCH)]})
        head = f"POST {path}:batchGet HTTP/1.1\r\n{host}Content-Type: application/json\r\nContent-Length: {len(body)}"
        made.append(f"{head}\r\n\r\n{body}".encode())
    return made


async def load(port: int, kind: str) -> dict[str, Any]:
    took: list[float] = []
    requests = _requests(kind, port)
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    made = [
        await loop.create_connection(lambda: _Connection(requests, took, began + SECONDS), "127.0.0.1", port)
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(protocol.done for _, protocol in made))
    spent = time.perf_counter() - began
    took.sort()
    return {
        "seconds": spent / len(took),  # a request
        "rate": len(took) / spent,
        "p50_ms": took[len(took) // 2] * 1000,
        "p99_ms": took[len(took) * 99 // 100] * 1000,
    }


def _position(port: int) -> int:
    with urlopen(f"http://127.0.0.1:{port}/v1/status") as answer:
        return int(json.load(answer)["workers"][0]["partitions"][0]["position"])


def _changing(port: int, kafka: str, topic: str) -> dict[str, Any]:
    writer = subprocess.Popen(python("changes", kafka, topic, CHANGES, ENTRIES), stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()  # it writes from now on
        before, began = _position(port), time.perf_counter()
        found = uvloop.run(load(port, "single"))
        applied = (_position(port) - before) / (time.perf_counter() - began)
        return {**found, "applied": applied}
    finally:
        writer.terminate()
        writer.wait()


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    port, kind, *changes = sys.argv[1:]
    print(json.dumps(_changing(int(port), *changes) if changes else uvloop.run(load(int(port), kind))))
