"""Programs that listen where a server looks for the owner of a directory: owners of the test, and impostors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from compactory_api.mastered.credential import FORWARDED, PROOF, Answer, Signer
from tests.api.serving import SERVERS

__all__ = ["Program", "Request", "listening", "signed"]


@dataclass(frozen=True)
class Request:
    """A request as a program got it; names of headers in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: Any = field(compare=False)


@dataclass
class Program:
    """A program at ``url``, and what it was asked."""

    url: str
    requests: list[Request] = field(default_factory=list)


@contextmanager
def listening(answer: Callable[[Program, Request], Answer], host: str = "127.0.0.1") -> Iterator[Program]:
    """Run a program that gives these answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def _answer(self) -> None:
            headers = {name.lower(): text for name, text in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", "0")))
            request = Request(self.command, self.path, headers, body, self.client_address)
            program.requests.append(request)
            status, sent, content = answer(program, request)
            self.send_response(status)
            for name, text in sent.items():
                self.send_header(name, text)
            if status != 204 and "content-length" not in sent:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = _answer  # noqa: N815 (the base class's names)

        def log_message(self, *_: object) -> None:
            pass

    class Listening(ThreadingHTTPServer):
        daemon_threads = True

    with Listening((host, 0), Handler) as server:
        program = Program(f"http://{host}:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield program
        finally:
            server.shutdown()
            thread.join()


def signed(request: Request, url: str, answer: Answer, path: str | None = None) -> Answer:
    """Return an answer with the proof of a server at ``url``."""
    signer = Signer(SERVERS.secret)
    credential = signer.credential(request.headers[FORWARDED], request.method, path or request.path, request.headers)
    status, headers, body = answer
    return status, headers | {PROOF: signer.proof(credential, url, answer)}, body
