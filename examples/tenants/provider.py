"""A payment provider that is away every other time. It keeps its promise about Idempotency-Keys.

    python provider.py [PORT [BOOK]]

Each account that it opens is a line in the file BOOK: a repeat with the same key opens none.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Lock

BOOK = Path(sys.argv[2] if len(sys.argv) > 2 else "accounts.book")


class Provider(BaseHTTPRequestHandler):
    """Opens accounts: 201 with the account, 402 for tenants that want to pay nothing, 503 now and then."""

    accounts: dict[str, str] = {}  # noqa: RUF012 (of the whole provider, by Idempotency-Key)
    requests = count()
    lock = Lock()

    def do_POST(self) -> None:
        """Open an account."""
        tenant = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            if next(self.requests) % 2:
                self._answer(503, {})
            elif tenant["plan"] == "free":
                self._answer(402, {})
            else:
                self._answer(201, {"account": self._opened(self.headers["Idempotency-Key"], tenant["email"])})

    def _opened(self, key: str, email: str) -> str:
        if key not in self.accounts:
            self.accounts[key] = f"account-{len(self.accounts) + 1}"
            with BOOK.open("a") as book:
                book.write(f"{self.accounts[key]} {email}\n")
        return self.accounts[key]

    def _answer(self, status: int, document: dict[str, str]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is the base class's)
        """Say nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8090), Provider).serve_forever()
