"""Requests handed on to the server that owns a directory, once it has proven that it is one of ours."""

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
_PROVE_SECONDS = 2.0  # in which an owner proves itself, else it counts as gone; its fence makes that safe
_ASK_AGAIN_SECONDS = 1.0  # after which an owner that has a write is asked whether it is alive
_PROVEN_SECONDS = 1.0  # for which a proof holds
_WRITE_SECONDS = 60.0  # that a write may take while its owner proves that it is alive
_BYTES_A_SECOND = 200_000  # of a body: so much longer may its answer take
_MOST_BYTES = 64 << 20  # of an answer
_IDLE_SECONDS = 10.0  # servers close idle connections, and a request into a closed one may look answered by nobody


class OwnerSilent(CompactoryError):
    """The owner did not answer; the request may have been carried out."""


class OwnerUnreached(OwnerSilent):
    """Nobody at the owner's address is the owner: the request was not carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedRequest:
    """A request for a write, as the owner gets it. ``place`` is the path of its directory, ``rest`` what follows."""

    caller: str
    method: str
    place: str
    rest: str
    headers: Mapping[str, str]
    body: bytes


class Forwarding:
    """Hands requests on to other servers. Owned by one event loop.

    An owner gets nothing of a request before it has signed a random text with the common secret and its own address.
    So neither another program at that address nor one that passes the text on to a real server gets a write.
    """

    def __init__(self, servers: Servers, own_url: str) -> None:
        self._servers = servers
        self._own_url = own_url
        self._signer = Signer(servers.secret)
        self._proven: dict[str, float] = {}  # address → when it proved itself
        self._refused: set[str] = set()  # addresses that were logged
        self._client: httpx2.AsyncClient | None = None

    def may_reach(self, url: str) -> bool:
        """Return True if writes may be sent to this address; log the first time that they may not."""
        problem = self._servers.problem_of(url, self._own_url)
        if problem is not None and url not in self._refused:
            self._refused = {url}
            log.warning("writes are not forwarded: the address that an owner announces, %s", problem)
        return problem is None

    async def send(self, url: str, request: ForwardedRequest) -> Answer:
        """Return the owner's answer. Raises OwnerSilent.

        The owner may take as long as its Kafka takes, while it proves that it is alive.
        """
        is_proven = time.monotonic() - self._proven.get(url, float("-inf")) < _PROVEN_SECONDS
        if not is_proven and await self._prove(url, request) != _IS_OWNER:
            raise OwnerUnreached("another server writes this directory")
        answering = asyncio.ensure_future(self._ask(url, request))
        try:
            while not (await asyncio.wait({answering}, timeout=_ASK_AGAIN_SECONDS))[0]:
                await self._prove_again(url, request, answering)
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

    async def _prove_again(self, url: str, request: ForwardedRequest, answering: asyncio.Future[Answer]) -> None:
        """Return if the server that has the request is alive or has answered. Raises OwnerSilent."""
        try:
            await self._prove(url, request)
        except OwnerUnreached as error:
            if not answering.done():
                raise OwnerSilent(str(error)) from error

    async def _prove(self, url: str, request: ForwardedRequest) -> int:
        """Return what the server at this address answers, once it has proven itself. Raises OwnerUnreached."""
        question = replace(request, method="GET", rest="owner", headers={}, body=b"")
        try:
            status, _, _ = await self._exchange(url, question, _PROVE_SECONDS)
        except OwnerSilent as error:
            self._proven.pop(url, None)
            log.warning("the server that writes %s, at %s, is left: %s", request.place, url, error)
            raise OwnerUnreached(str(error)) from error
        self._proven[url] = time.monotonic()
        return status

    async def _ask(self, url: str, request: ForwardedRequest) -> Answer:
        return await self._exchange(url, request, _WRITE_SECONDS + len(request.body) / _BYTES_A_SECOND)

    async def _exchange(self, url: str, request: ForwardedRequest, seconds: float) -> Answer:
        """Return the answer of the server at ``url``, which has proven that it gave it. Raises OwnerSilent."""
        credential = Credential.of(request.caller, request.body)
        path = f"{request.place}/{request.rest}"
        headers = {name: request.headers[name] for name in SENT_HEADERS if name in request.headers}
        signed = headers | {FORWARDED: self._signer.header(credential, request.method, path, headers)}
        sent = [(name.encode(), value.encode("latin-1")) for name, value in signed.items()]
        try:
            async with asyncio.timeout(seconds):
                proof, answer = await self._answer(url + path, request.method, sent, request.body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise OwnerUnreached(f"it is not reached ({type(error).__name__})") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            raise OwnerSilent(f"it does not answer ({type(error).__name__})") from error
        if not self._signer.is_proven(proof, credential, url, answer):
            raise OwnerSilent(f"its answer, HTTP {answer[0]}, is not signed with the common servers_secret")
        return answer

    async def _answer(
        self, url: str, method: str, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> tuple[str, Answer]:
        """Return the proof and the answer. What has no proof is not read: it may have no end."""
        client = self._client
        if client is None:
            client = self._client = httpx2.AsyncClient(
                verify=ssl.create_default_context(),
                trust_env=False,  # servers reach each other without a proxy
                follow_redirects=False,
                timeout=httpx2.Timeout(None, connect=_PROVE_SECONDS),
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS),
                headers={"accept-encoding": "identity"},
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # keeps none
            )
        async with client.stream(method, url, headers=headers, content=body) as answer:
            proof = answer.headers.get(PROOF, "")
            if not proof:
                raise OwnerSilent(f"no server with the common servers_secret answers there (HTTP {answer.status_code})")
            content = bytearray()
            async for part in answer.aiter_raw():
                content += part
                if len(content) > _MOST_BYTES:
                    raise httpx2.ReadError("the answer is too large")
            answer.headers.encoding = "latin-1"
            returned = {name: answer.headers[name] for name in RETURNED_HEADERS if name in answer.headers}
            return proof, (answer.status_code, returned, bytes(content))
