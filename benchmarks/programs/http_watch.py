"""Clients that watch a directory over HTTP: ``http_watch PORT KAFKA TOPIC CLIENTS``.

All get every change, 100 a second. A change's time is that from before it is produced until the last client has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from typing import Any
from urllib.request import urlopen

import orjson
import uvloop
from confluent_kafka import Producer

from benchmarks.programs.stamping import KEY, percentiles, stamped

_RATE = 100  # changes a second
_CHANGES = 1000
_STAMPS = re.compile(rb'"new":[^\n]*"stamp":(\d+)')


class _Client(asyncio.Protocol):
    """Counts the stamps that arrive; ``begun`` once the stream has."""

    def __init__(self, request: bytes, received: dict[bytes, int], clients: int, took: list[float]) -> None:
        self._request, self._received, self._clients, self._took = request, received, clients, took
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.begun.done():
            self._rest += data
            if b"\nid: " in self._rest:
                self.begun.set_result(None)
                self._rest = b""
            return
        whole, end, self._rest = (self._rest + data).rpartition(b"\n")
        for stamp in _STAMPS.findall(whole + end):
            self._received[stamp] = count = self._received.get(stamp, 0) + 1
            if count == self._clients:
                self._took.append((time.monotonic_ns() - int(stamp)) / 1e6)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.begun.done():
            self.begun.set_exception(exc or ConnectionError(repr(self._rest)))


def _resident(port: int) -> float:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        found = re.search(rb"^process_resident_memory_bytes (\S+)", answer.read(), re.MULTILINE)
    assert found is not None
    return float(found[1])


async def _watch(port: int, kafka: str, topic: str, clients: int) -> dict[str, float]:
    producer = Producer({"bootstrap.servers": kafka, "acks": "all", "linger.ms": 0})
    producer.list_topics(topic, timeout=10)
    request = f"GET /v1/directories/{topic}/watch HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    received: dict[bytes, int] = {}
    took: list[float] = []
    before = await asyncio.to_thread(_resident, port)
    watching = []
    for _ in range(clients):
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: _Client(request, received, clients, took), "127.0.0.1", port)
        await client.begun
        watching.append(client)
    idle = await asyncio.to_thread(_resident, port)
    began = time.monotonic()
    for number in range(_CHANGES):
        producer.produce(topic, orjson.dumps(stamped(time.monotonic_ns())), KEY)
        producer.poll(0)
        await asyncio.sleep(max(0.0, began + (number + 1) / _RATE - time.monotonic()))
    async with asyncio.timeout(60):
        while len(took) < _CHANGES:
            await asyncio.sleep(0.01)
    for client in watching:
        client.transport.abort()
    return {**percentiles(took, "last"), "kb": (idle - before) / clients / 1000}


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    port, kafka, topic, clients = sys.argv[1:]
    print(json.dumps(uvloop.run(_watch(int(port), kafka, topic, int(clients)))))
