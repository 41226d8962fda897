"""A schema registry on this machine that keeps what is registered, for tests whose readers are other processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["running_registry", "serving"]


class _Requests(BaseHTTPRequestHandler):
    schemas: list[dict[str, Any]]
    """The schemas by id, from 1."""

    def do_POST(self) -> None:
        """Register a schema, and answer with its id."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        schema = {"schemaType": "AVRO", **body}
        if schema not in self.schemas:
            self.schemas.append(schema)
        self._answer(200, {"id": self.schemas.index(schema) + 1})

    def do_GET(self) -> None:
        """Answer with the schema of an id."""
        number = int(self.path.split("/")[3].partition("?")[0])
        if number > len(self.schemas):
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})
        else:
            self._answer(200, self.schemas[number - 1])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running_registry() -> Iterator[str]:
    """Yield the URL of a registry, which ends with the block."""
    with serving(type("Requests", (_Requests,), {"schemas": []})) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[int]:
    """Answer HTTP requests by a handler until the block ends. Yield the port: a free one, unless it is given."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
