"""The yardstick of the benchmark of writes: a producer with nothing around it, as an ASGI application.

``bare.writes PORT KAFKA TOPIC [ID]`` serves it with the settings of ``compactory serve``. A PUT is answered when its
record is acknowledged, a POST when those of all its lines are. With a transactional id a PUT is answered when the
transaction of those that waited is committed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from queue import Empty, SimpleQueue
from typing import Any

import uvicorn
from confluent_kafka import Producer

PORT, KAFKA, TOPIC = sys.argv[1:4]
SETTINGS = {"acks": "all", "enable.idempotence": True, "compression.type": "lz4", "partitioner": "murmur2_random"}
TRANSACTIONS = {"transactional.id": sys.argv[4], "retry.backoff.ms": 1} if sys.argv[4:] else {}
QUEUE = {"linger.ms": 0, "queue.buffering.max.messages": 1_000_000}
producer = Producer({"bootstrap.servers": KAFKA, **QUEUE, **SETTINGS, **TRANSACTIONS})
waiting: SimpleQueue[tuple[str, bytes, Any]] = SimpleQueue()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer one request."""
    body, more = b"", scope["method"] != "GET"
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["method"] == "PUT":
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        key = scope["path"].rsplit("/", 1)[1]
        answer = lambda *_: loop.call_soon_threadsafe(done.set_result, None)  # noqa: E731
        if TRANSACTIONS:
            waiting.put((key, body, answer))
        else:
            producer.produce(TOPIC, body, key, on_delivery=answer)
        await done
    elif body:
        for number, line in enumerate(body.splitlines()):
            producer.produce(TOPIC, line, b"%d" % number)
        await asyncio.to_thread(producer.flush)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def _poll() -> None:
    while True:
        producer.poll(0.1)


def _transact() -> None:
    producer.init_transactions()
    while True:
        answers, entry = [], waiting.get()
        producer.begin_transaction()
        try:
            while True:
                key, body, answer = entry
                producer.produce(TOPIC, body, key)
                answers.append(answer)
                entry = waiting.get_nowait()
        except Empty:
            producer.commit_transaction()
        for answer in answers:
            answer()


if __name__ == "__main__":
    threading.Thread(target=_transact if TRANSACTIONS else _poll, daemon=True).start()
    options: dict[str, Any] = {"loop": "uvloop", "http": "httptools", "ws": "none", "lifespan": "off"}
    uvicorn.run(app, port=int(PORT), access_log=False, server_header=False, log_level="error", **options)
