"""Forwards requests to the server that owns a directory, once it has proven that it has the common secret."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2

from compactory.errors import CompactoryError

from .credential import FORWARDED, PROOF, RETURNED_HEADERS, SENT_HEADERS, Answer, Credential, Signer
from .servers import Servers

__all__ = ["ForwardedRequest", "Forwarding", "OwnerSilent", "OwnerUnreached", "StreamedAnswer"]

log = logging.getLogger("compactory.api")

StreamedAnswer = tuple[int, dict[str, str], bytes | AsyncIterator[bytes]]
"""Status, headers and body, which may come in parts."""

_IS_OWNER = 204
_PROOF_TIMEOUT = 2.0  # seconds in which an owner must prove itself. Another server may then safely fence it
_PROOF_INTERVAL = 1.0  # seconds between two proofs of an owner that has not answered a write yet
_PROOF_VALIDITY = 1.0  # seconds
_WRITE_TIMEOUT = 60.0  # seconds that a write may take while its owner proves that it is alive
_BODY_BYTES_PER_SECOND = 200_000  # a write may take longer by its body's size divided by this
_MAX_BYTES = 64 << 20  # of an answer
_IDLE_TIMEOUT = 10.0  # seconds; shorter than a server's, so that no request goes into a connection that it closes


class OwnerSilent(CompactoryError):
    """The owner did not answer. The request may have been carried out."""


class OwnerUnreached(OwnerSilent):
    """The server at the owner's address is unreachable or not the owner. The request was not carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedRequest:
    """A request to the owner of a directory. ``subpath`` follows ``directory_path`` and a slash."""

    caller: str
    method: str
    directory_path: str
    subpath: str
    headers: Mapping[str, str]
    body: bytes


class Forwarding:
    """Forwards requests to other servers. Owned by one event loop.

    A server gets no request before it has signed a random text with the common secret and its own address. So no
    other program at that address gets a write, even if it passes the text on to a real server.
    """

    def __init__(self, servers: Servers, own_url: str) -> None:
        self._servers = servers
        self._own_url = own_url
        self._signer = Signer(servers.secret)
        self._proven_at: dict[str, float] = {}  # address → monotonic time of its last proof
        self._logged_urls: set[str] = set()  # addresses that were logged
        self._client: httpx2.AsyncClient | None = None

    def may_reach(self, url: str) -> bool:
        """Return True if writes may be sent to this address. Log an address to which they may not once."""
        problem = self._servers.problem_of(url, self._own_url)
        if problem is not None and url not in self._logged_urls:
            self._logged_urls = {url}
            log.warning("writes are not forwarded: the address that an owner announces, %s", problem)
        return problem is None

    async def send(self, url: str, request: ForwardedRequest) -> Answer:
        """Return the owner's answer. Raises OwnerSilent.

        The owner may take as long as its Kafka takes, if it proves every second that it is alive.
        """
        is_proven = time.monotonic() - self._proven_at.get(url, float("-inf")) < _PROOF_VALIDITY
        if not is_proven and await self._owner_status(url, request) != _IS_OWNER:
            raise OwnerUnreached("another server writes this directory")
        seconds = _WRITE_TIMEOUT + len(request.body) / _BODY_BYTES_PER_SECOND
        answering = asyncio.ensure_future(self._send_signed(url, request, seconds))
        try:
            while not (await asyncio.wait({answering}, timeout=_PROOF_INTERVAL))[0]:
                await self._check_alive(url, request, answering)
            status, headers, content = answering.result()
        finally:
            answering.cancel()
        if status == 503 and b":not-owner" in content:
            raise OwnerUnreached("another server writes this directory")
        return status, headers, content

    async def aclose(self) -> None:
        """Close the connections. In the event loop."""
        if self._client is not None:
            await self._client.aclose()

    async def _check_alive(self, url: str, request: ForwardedRequest, answering: asyncio.Future[Answer]) -> None:
        """Raise OwnerSilent if the server has not answered the request and does not prove that it is alive."""
        try:
            await self._owner_status(url, request)
        except OwnerUnreached as error:
            if not answering.done():
                raise OwnerSilent(str(error)) from error

    async def _owner_status(self, url: str, request: ForwardedRequest) -> int:
        """Return the status with which the server answers if it is the owner, with its proof. Raises OwnerUnreached."""
        question = replace(request, method="GET", subpath="owner", headers={}, body=b"")
        try:
            status, _, _ = await self._send_signed(url, question, _PROOF_TIMEOUT)
        except OwnerSilent as error:
            self._proven_at.pop(url, None)
            log.warning("the server at %s is not the owner of %s any more: %s", url, request.directory_path, error)
            raise OwnerUnreached(str(error)) from error
        self._proven_at[url] = time.monotonic()
        return status

    async def _send_signed(self, url: str, request: ForwardedRequest, seconds: float) -> Answer:
        """Return the answer of the server at ``url`` if it is signed by this server. Raises OwnerSilent."""
        credential = Credential.of(request.caller, request.body)
        path = f"{request.directory_path}/{request.subpath}"
        headers = {name: request.headers[name] for name in SENT_HEADERS if name in request.headers}
        signed = headers | {FORWARDED: self._signer.header(credential, request.method, path, headers)}
        sent = [(name.encode(), value.encode("latin-1")) for name, value in signed.items()]
        try:
            async with asyncio.timeout(seconds):
                proof, answer = await self._request(url + path, request.method, sent, request.body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise OwnerUnreached(f"it is unreachable ({type(error).__name__})") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            raise OwnerSilent(f"it does not answer ({type(error).__name__})") from error
        if not self._signer.is_proven(proof, credential, url, answer):
            raise OwnerSilent(f"its answer, HTTP {answer[0]}, is not signed with the common servers_secret")
        return answer

    async def _request(
        self, url: str, method: str, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> tuple[str, Answer]:
        """Return the proof and the answer. The body of an answer without a proof is not read: it may be endless."""
        client = self._client
        if client is None:
            client = self._client = httpx2.AsyncClient(
                verify=ssl.create_default_context(),
                trust_env=False,  # servers reach each other without a proxy
                follow_redirects=False,
                timeout=httpx2.Timeout(None, connect=_PROOF_TIMEOUT),
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=_IDLE_TIMEOUT),
                headers={"accept-encoding": "identity"},
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # keeps none
            )
        async with client.stream(method, url, headers=headers, content=body) as response:
            proof = response.headers.get(PROOF, "")
            if not proof:
                raise OwnerSilent(f"no server with the common servers_secret is there (HTTP {response.status_code})")
            content = bytearray()
            async for part in response.aiter_raw():
                content += part
                if len(content) > _MAX_BYTES:
                    raise httpx2.ReadError("the answer is too large")
            response.headers.encoding = "latin-1"
            returned = {name: response.headers[name] for name in RETURNED_HEADERS if name in response.headers}
            return proof, (response.status_code, returned, bytes(content))
