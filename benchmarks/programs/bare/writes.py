"""The yardstick of the benchmark of writes: a producer with nothing around it, as an ASGI application.

``bare.writes PORT KAFKA TOPIC`` serves it with the settings of ``compactory serve``. A PUT is answered when its record
is acknowledged, a POST when those of all its lines are.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import uvicorn
from confluent_kafka import Producer

PORT, KAFKA, TOPIC = sys.argv[1:4]
SETTINGS = {"acks": "all", "enable.idempotence": True, "compression.type": "lz4", "partitioner": "murmur2_random"}
producer = Producer({"bootstrap.servers": KAFKA, "linger.ms": 0, "queue.buffering.max.messages": 1_000_000, **SETTINGS})


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
        producer.produce(TOPIC, body, key, on_delivery=lambda *_: loop.call_soon_threadsafe(done.set_result, None))
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


if __name__ == "__main__":
    threading.Thread(target=_poll, daemon=True).start()
    options: dict[str, Any] = {"loop": "uvloop", "http": "httptools", "ws": "none", "lifespan": "off"}
    uvicorn.run(app, port=int(PORT), access_log=False, server_header=False, log_level="error", **options)
