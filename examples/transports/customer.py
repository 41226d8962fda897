"""The customers' HTTP server: refuses T1 until somebody asks for /mend. See README.md beside this file."""

from __future__ import annotations

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(os.environ.get("CUSTOMER_PORT", "8900"))


class Customer(BaseHTTPRequestHandler):
    """Answers 503 for T1, 204 for all others."""

    mended = False

    def do_POST(self) -> None:
        """Take a notification, or mend."""
        self.rfile.read(int(self.headers.get("content-length", 0)))
        Customer.mended |= self.path == "/mend"
        self.send_response(503 if self.path.startswith("/T1/") and not Customer.mended else 204)
        self.end_headers()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", PORT), Customer).serve_forever()
