"""Writes over HTTP: ``write_load PORT put|bulk|visible|lookups|beside``; prints a line of JSON.

``put``: 32 clients, each waits for its answer. ``bulk``: 100,000 entries in requests of 10,000 lines. ``visible``: a
PUT, then a GET with its token: the time from the PUT's answer to the GET's. ``lookups``: GETs of 8 clients, ``beside``
2,000 writes a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import uvloop

CLIENTS = 32
READERS = 8
ENTRIES = 100_000
LINES = 10_000  # of a request
SECONDS = 3.0
WRITES = 2_000  # a second, in requests of 100 lines
PATH = "/v1/directories/tenants/entries"


class Client:
    """One connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> dict[str, str]:
        """Send a request; return the headers of its answer."""
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        assert head[0].startswith("HTTP/1.1 2"), head
        found = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        if found.get("transfer-encoding") == "chunked":  # a bulk write's answers come as they are committed
            while size := int(await self._reader.readline(), 16):
                await self._reader.readexactly(size + 2)
            await self._reader.readline()
        await self._reader.readexactly(int(found.get("content-length", 0)))
        return found


def _value(number: int) -> bytes:
    return json.dumps({"email": f"{number}@example.org", "name": "x" * 60}).encode()


def _lines(numbers: range) -> bytes:
    return b"\n".join(b'{"op": "put", "key": "t%d", "value": %b}' % (number, _value(number)) for number in numbers)


async def _put(clients: list[Client], until: float, took: list[float]) -> None:
    async def work(number: int, client: Client) -> None:
        count = number
        while (began := time.perf_counter()) < until:
            count += CLIENTS
            await client.ask("PUT", f"{PATH}/t{count}", _value(count), "Content-Type: application/json")
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(work(number, client) for number, client in enumerate(clients)))


async def _visible(client: Client, until: float, took: list[float]) -> None:
    count = 0
    while time.perf_counter() < until:
        count += 1
        path = f"{PATH}/t{count % 1000}"
        put = await client.ask("PUT", path, _value(count), "Content-Type: application/json")
        token = f"Compactory-Min-Offset: {put['compactory-offset']}"
        answered = time.perf_counter()
        await client.ask("GET", path, b"", token, "Prefer: wait=5")
        took.append(time.perf_counter() - answered)


async def _read(clients: list[Client], until: float, took: list[float]) -> None:
    async def work(client: Client) -> None:
        count = 0
        while (began := time.perf_counter()) < until:
            count = (count + 7) % 1000
            await client.ask("GET", f"{PATH}/t{count}")
            took.append(time.perf_counter() - began)

    await asyncio.gather(*map(work, clients))


async def _write(client: Client, until: float) -> None:
    body, due = _lines(range(100)), time.perf_counter()
    while time.perf_counter() < until:
        await client.ask("POST", f"{PATH}:bulkWrite", body, "Content-Type: application/x-ndjson")
        due += 100 / WRITES
        await asyncio.sleep(max(0.0, due - time.perf_counter()))


async def _load(port: int, kind: str) -> dict[str, Any]:
    clients = [await Client(port).open() for _ in range(CLIENTS)]
    if kind in ("visible", "lookups", "beside"):
        await clients[0].ask("POST", f"{PATH}:bulkWrite", _lines(range(1000)), "Content-Type: application/x-ndjson")
        await asyncio.sleep(0.5)
    bodies = [_lines(range(at, at + LINES)) for at in range(0, ENTRIES, LINES)] if kind == "bulk" else []
    took: list[float] = []
    began = time.perf_counter()
    until = began + SECONDS
    for body in bodies:
        await clients[0].ask("POST", f"{PATH}:bulkWrite", body, "Content-Type: application/x-ndjson")
    if kind == "put":
        await _put(clients, until, took)
    elif kind == "visible":
        await _visible(clients[0], until, took)
    elif kind == "lookups":
        await _read(clients[:READERS], until, took)
    elif kind == "beside":
        await asyncio.gather(_read(clients[:READERS], until, took), _write(clients[-1], until))
    spent = time.perf_counter() - began
    if kind == "bulk":
        return {"seconds": spent / ENTRIES, "rate": ENTRIES / spent}
    took.sort()
    quantiles = {"p50_ms": took[len(took) // 2] * 1000, "p99_ms": took[len(took) * 99 // 100] * 1000}
    return {"seconds": spent / len(took), "rate": len(took) / spent, **quantiles}


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(json.dumps(uvloop.run(_load(int(sys.argv[1]), sys.argv[2]))))
