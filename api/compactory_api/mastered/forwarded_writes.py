"""Answers writes that other servers forward to this server as the owner of a directory."""

from __future__ import annotations

from typing import Any, cast

from compactory.errors import CompactoryError
from compactory.write.operation import Kind

from ..http.access import GRANT, Grant, Scope
from ..http.problem import NoResource, Unauthorized, problem
from ..http.request import DIRECTORIES, decode_segment, raw_path, text_headers
from .credential import CREDENTIAL, FORWARDED, PROOF, Answer, Signer
from .writes import Writes, check_owner

__all__ = ["ForwardedWrites"]


class ForwardedWrites:
    """Answers forwarded requests. Each answer has this server's proof."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    async def answer(self, scope: Any, receive: Any) -> Answer:
        """Return the answer to a forwarded request. Raises Unauthorized unless a server with our secret sent it."""
        if self._writes.servers is None:
            raise Unauthorized("this server accepts no forwarded writes: it has no servers_secret")
        signer = Signer(self._writes.servers.secret)
        headers = text_headers(scope)
        path = raw_path(scope).decode("latin-1")
        credential = signer.credential(headers[FORWARDED], scope["method"], path, headers)
        scope[CREDENTIAL] = credential
        scope[GRANT] = Grant(name=f"{credential.caller} through another server", default=Scope.WRITE)
        try:
            answer = await self._answer(scope, receive)
        except CompactoryError as error:
            refusal = problem(error)
            refusal_headers = {
                name.decode(): text.decode() for name, text in refusal.headers if name != b"content-length"
            }
            answer = refusal.status, refusal_headers, refusal.body
        status, answer_headers, body = answer
        return status, answer_headers | {PROOF: signer.proof(credential, self._writes.url, answer)}, body

    async def _answer(self, scope: Any, receive: Any) -> Answer:
        segment, _, subpath = raw_path(scope).removeprefix(DIRECTORIES).partition(b"/")
        directory, method = decode_segment(segment), scope["method"]
        if subpath == b"owner" and method == "GET":
            check_owner(self._writes.batcher(directory, scope).writer)
            return 204, {}, b""
        if subpath == b"entries:batchWrite" and method == "POST":
            return await self._writes.batch(directory, scope, receive)
        if subpath == b"entries:bulkWrite" and method == "POST":
            status, headers, parts = await self._writes.bulk(directory, scope, receive)
            body = parts if isinstance(parts, bytes) else b"".join([part async for part in parts])
            return status, headers, body
        collection, _, key = subpath.partition(b"/")
        if collection != b"entries" or method not in ({"PUT", "PATCH", "DELETE"} if key else {"POST"}):
            raise NoResource("servers forward nothing but writes")
        kind = cast("Kind", method.lower())
        return await self._writes.single(kind, directory, decode_segment(key) if key else None, scope, receive)
