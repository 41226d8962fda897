"""A token endpoint as OpenID Connect providers have it: client credentials over HTTPS against a signed token."""

from __future__ import annotations

import base64
import json
import ssl
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

__all__ = ["AUDIENCE", "IdentityProvider", "unsecured_token"]

AUDIENCE = "kafka"


class IdentityProvider:
    """Answers on 127.0.0.1 between ``start`` and ``stop``; ``issued`` has every token that it gave away."""

    def __init__(self, certificate: Path, client: str, secret: str) -> None:
        self.issued: list[str] = []
        self.lifetime = 300  # seconds
        self._client = client
        self._expected = "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode()
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}/token"

    def keys(self) -> dict[str, Any]:
        """The key set with which tokens are checked (RFC 7517)."""
        public = self._key.public_key().public_numbers()
        numbers = {"n": public.n.to_bytes(256, "big"), "e": public.e.to_bytes(3, "big")}
        encoded = {name: _encoded(number) for name, number in numbers.items()}
        return {"keys": [{"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig", **encoded}]}

    def start(self) -> None:
        Thread(target=self._server.serve_forever, name="identity-provider", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def token(self) -> str:
        """A token as the endpoint gives it away."""
        now = int(time.time())
        claims = {"sub": self._client, "aud": AUDIENCE, "iat": now, "exp": now + self.lifetime}
        signed = f"{_part({'alg': 'RS256', 'typ': 'JWT', 'kid': '1'})}.{_part(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        self.issued.append(f"{signed}.{_encoded(signature)}")
        return self.issued[-1]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.headers.get("Authorization") != provider._expected:
                    self._answer(401, {"error": "invalid_client", "error_description": "who are you?"})
                else:
                    granted = {"access_token": provider.token(), "expires_in": provider.lifetime}
                    self._answer(200, {**granted, "token_type": "Bearer"})

            def _answer(self, status: int, document: dict[str, Any]) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (its base class names it so)
                """Say nothing."""

        return Handler


def unsecured_token(principal: str, lifetime: float = 300.0) -> tuple[str, float]:
    """A token without a signature, and when it ends; Kafka takes such tokens where nothing else was set up."""
    now = time.time()
    claims = {"sub": principal, "iat": int(now), "exp": int(now + lifetime)}
    return f"{_part({'alg': 'none'})}.{_part(claims)}.", now + lifetime


def _part(document: dict[str, Any]) -> str:
    return _encoded(json.dumps(document).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
