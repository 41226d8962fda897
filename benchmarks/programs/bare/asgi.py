"""The yardstick of the HTTP benchmark: a lookup with nothing around it, as an ASGI application of 100,000 entries.

``bare.asgi PORT`` serves it with the settings of ``compactory serve``. Any path that ends in
/0 … /99999 is answered with the value of that key; nothing is checked, nothing is counted.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

from benchmarks.programs.http_load import ENTRIES
from benchmarks.topics import value

_VALUES = {b"%d" % number: value(number) for number in range(ENTRIES)}


async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 (ASGI's)
    """Answer one request."""
    found = _VALUES[scope["path"].rsplit("/", 1)[1].encode()]
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(found))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": found})


if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_level="error",
    )
