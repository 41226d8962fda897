"""Client of a running Compactory server, for commands that need not read topics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.nearest import nearest_or_all
from compactory.records import Entry
from compactory.token import Token
from compactory_client import Client
from compactory_client.server_url import ServerUrl

from .failure import StepFailed

if TYPE_CHECKING:
    import httpx2

__all__ = ["RemoteServer"]

_MOST_ERRORS = 1000  # what a server lists at most
_ADMIN = "COMPACTORY_HTTP_ADMIN_TOKEN"
_ANY = f"COMPACTORY_HTTP_READ_TOKEN, COMPACTORY_HTTP_WRITE_TOKEN or {_ADMIN}"
_TIMEOUT = 10.0  # seconds
_SILENT = 60.0  # seconds; a server that is watched sends a heartbeat every 15


class RemoteServer:
    """The server at a base URL. Raises Unreachable, ConfigError for HTTP 401 and 403, StepFailed for other errors.

    ``orders``: the caller gives orders, which need the admin's token.
    """

    def __init__(self, url: str, token: str | None = None, *, orders: bool = False) -> None:
        self.place = ServerUrl.parse(url, token).base
        self._url, self._token = url, token
        self._sufficient = _ADMIN if orders else _ANY

    def entry(self, directory: str, key: str) -> Entry:
        """Return the entry of a key, without its record's time."""
        path = f"/v1/directories/{quote(directory, safe='')}/entries/{quote(key, safe='')}"
        with self._opened(path) as answer:
            body, token = answer.read(), Token.parse(answer.headers["Compactory-Offset"])
        return Entry(key, body, token.topic, token.partition, token.offset, -1)

    def directories(self, names: Iterable[str] = ()) -> list[dict[str, Any]]:
        """Return the directories of these names with their state, or all. Raises ConfigError for unknown names."""
        rows = {row["name"]: row for row in self._json("/v1/directories")["directories"]}
        chosen = list(dict.fromkeys(names)) or list(rows)
        if unknown := [name for name in chosen if name not in rows]:
            raise ConfigError(f"{self.place} has no directory {name!r}{nearest_or_all(name, rows)}" for name in unknown)
        return [rows[name] for name in chosen]

    def errors(self) -> tuple[list[dict[str, Any]], int]:
        """Return the newest bad records, with their bytes for the admin's token, and the number of all."""
        document = self._json(f"/v1/errors?limit={_MOST_ERRORS}")
        return document["errors"], document["outstanding"]

    def resolve(self, verb: str, places: list[dict[str, Any]] | None) -> dict[str, int]:
        """Retry or skip bad records, with None all; return how many were resolved and how many are outstanding."""
        return self._json(f"/v1/errors:{verb}", "POST", None if places is None else {"errors": places})

    def changes(self, directory: str, since: str | None, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield the changes of a directory with their cursors. Raises the error that ends the stream."""
        query = urlencode({"prefix": prefix} | ({} if since is None else {"since": since}))
        with self._opened(f"/v1/directories/{quote(directory, safe='')}/watch?{query}", timeout=_SILENT) as answer:
            event = cursor = ""
            for line in answer.iter_lines():
                field, _, text = line.partition(": ")
                if field == "data" and event == "end":
                    problem = json.loads(text)
                    raise self._refused(problem["status"], problem["detail"] or problem["title"])
                if field == "data":
                    yield {**json.loads(text), "cursor": cursor}
                event, cursor = text if field == "event" else event, text if field == "id" else cursor
        raise Unreachable("HTTP", f"{self.place} broke its answer off; go on with --since '{cursor}'")

    def status(self) -> dict[str, Any]:
        """Return the status of every worker of the process."""
        return self._json("/v1/status")

    def connector(self, name: str) -> dict[str, Any]:
        """Return the status of a connector."""
        return self._json(f"/v1/connectors/{quote(name, safe='')}/status")

    def order(
        self, connector: str, verb: str, *, table: str | None = None, document: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Give a source an order and return its status. Raises StepFailed if its state does not allow the order."""
        part = f"/tables/{quote(table, safe='')}" if table is not None else ""
        method = "PUT" if verb in {"pause", "resume"} else "POST"
        return self._json(f"/v1/connectors/{quote(connector, safe='')}{part}/{verb}", method, document)

    def _json(self, path: str, method: str = "GET", document: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the document that answers a request."""
        with self._opened(path, method, json.dumps(document).encode() if document is not None else b"") as answer:
            try:
                answered: dict[str, Any] = json.loads(answer.read())
            except ValueError:
                raise Unreachable("HTTP", f"{self.place} did not answer with JSON; check that address") from None
        return answered

    @contextmanager
    def _opened(
        self, path: str, method: str = "GET", body: bytes = b"", timeout: float | None = None
    ) -> Iterator[httpx2.Response]:
        """Yield the answer to a request. Raises the error of an error answer, with its problem document's text."""
        with (
            Client(self._url, token=self._token, timeout=_TIMEOUT) as client,
            client.opened(method, path, body if method != "GET" else None, timeout=timeout) as answer,
        ):
            if answer.status_code >= 300:
                problem = {"detail": None, "title": answer.reason_phrase}
                with suppress(ValueError, TypeError):
                    problem |= json.loads(answer.read())
                raise self._refused(answer.status_code, f"{problem['detail'] or problem['title']}")
            yield answer

    def _refused(self, code: int, text: str) -> CompactoryError:
        message = f"{text} (HTTP {code} from {self.place})"
        if code == 401:  # the server's text is for those who write requests
            return ConfigError(f"{message}; set {self._sufficient} to the token of that server")
        if code == 403:
            return ConfigError(message)
        return Unreachable("HTTP", message) if code in {503, 504} else StepFailed(message)
