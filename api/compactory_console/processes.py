"""The processes that the console knows, by their HTTP API: each is asked for its status every two seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx2  # the responses of the client
import orjson
from prometheus_client.parser import text_string_to_metric_families

from compactory.errors import CompactoryError, ConfigError
from compactory_client import AsyncClient
from compactory_client.server_url import ServerUrl

from .verdict import Verdict, verdict_of_server, verdict_of_worker

__all__ = ["Process", "Processes", "Refused", "Sample", "directory_path"]

_POLL_SECONDS = 2.0
_SAMPLE_SECONDS = 5.0
_STATUS_TIMEOUT = 2.5  # seconds; an outage is shown within five
_TIMEOUT = 10.0  # seconds; the first search sorts the keys of a directory
_HOUR = 3600.0
_LOOKUP = "/v1/directories/{directory}/entries/{key}"


class Refused(CompactoryError):
    """A process has answered with an error. ``status`` is the one of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Figures of a process at a time, in seconds since 1970; the last three are numbers a second. None: unknown."""

    at: float
    lag: float | None = None
    age: float | None = None
    changes: float | None = None
    lookups: float | None = None
    attempts: float | None = None


@dataclass
class Process:
    """A process: its newest status, or why there is none, and the samples of the last hour."""

    number: int
    url: str
    status: dict[str, Any] | None = None
    error: str | None = None
    since: float = field(default_factory=time.time)
    """When the process was first seen as it is now: reached, or not reached; in seconds since 1970."""
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=int(_HOUR / _SAMPLE_SECONDS)))
    _counted: tuple[float, dict[str, float]] = (0.0, {})

    @property
    def workers(self) -> list[dict[str, Any]]:
        """The statuses of the workers of the process."""
        return [] if self.status is None else list(self.status["workers"])

    @property
    def directories(self) -> list[dict[str, Any]]:
        """The directories that the process serves."""
        return [directory for worker in self.workers for directory in worker.get("directories") or ()]

    def directory(self, name: str) -> dict[str, Any] | None:
        """Return the status of a directory, or None."""
        return next((directory for directory in self.directories if directory["name"] == name), None)

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        """Return the partitions of a topic with their positions."""
        return [item for worker in self.workers for item in worker.get("partitions") or () if _topic_of(item) == topic]

    def verdict(self) -> Verdict:
        """Return how the process is."""
        return verdict_of_server(self.status, self.error)

    def verdicts(self) -> Iterator[tuple[dict[str, Any], Verdict]]:
        """Yield each worker and how it is."""
        for worker in self.workers:
            yield worker, verdict_of_worker(worker)

    def note(self, status: dict[str, Any] | None, error: str | None) -> None:
        """Store an answer, or why there was none."""
        if (self.error is None) is not (error is None) or (self.status is None and status is not None):
            self.since = time.time()
        self.status, self.error = status, error

    def sample(self, lookups: float | None) -> None:
        """Store a sample. ``lookups``: the number since the process started, or None."""
        counted_at, previous = self._counted
        totals = {name: total for name, total in self._totals(lookups) if total is not None}
        self._counted = sampled_at, _ = time.time(), totals
        rates = {
            name: max(0.0, total - previous[name]) / (sampled_at - counted_at)
            for name, total in totals.items()
            if name in previous
        }
        ages = [directory["age_seconds"] for directory in self.directories if directory["age_seconds"] is not None]
        lag = float(sum(directory["lag"] for directory in self.directories)) if self.directories else None
        self.samples.append(Sample(at=sampled_at, lag=lag, age=max(ages, default=None), **rates))

    def _totals(self, lookups: float | None) -> Iterator[tuple[str, float | None]]:
        """Yield what grows from the start of the process on; None where the process has no such thing."""
        stores = [worker for worker in self.workers if worker.get("directories")]
        positions = [part["position"] or 0 for store in stores for part in store["partitions"]]
        runs = [worker["runs"] for worker in self.workers if isinstance(worker.get("runs"), dict)]
        yield "changes", float(sum(positions)) if stores else None
        yield "lookups", lookups
        yield (
            "attempts",
            float(sum(sum(outcomes.values()) for types in runs for outcomes in types.values())) if runs else None,
        )


class Processes:
    """All processes. Owned by one event loop. ``start`` begins to ask them; ``close`` ends that."""

    def __init__(self, urls: Sequence[str], token: str | None) -> None:
        self.processes = [Process(number, ServerUrl.parse(url, token).base) for number, url in enumerate(urls)]
        self.version = 0
        """Grows with each answer of a process."""
        self._clients = [AsyncClient(url, token=token, timeout=_TIMEOUT, wait=0.0) for url in urls]
        self._answered = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners: list[Callable[[Process], None]] = []

    def start(self) -> None:
        """Begin to ask every process."""
        if not self._tasks:
            logging.getLogger("httpx2").setLevel(logging.WARNING)  # its lines have addresses, which have keys
            self._tasks = [asyncio.create_task(self._follow(server)) for server in self.processes]

    async def close(self) -> None:
        """End, and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:
            await client.aclose()

    def on_status(self, listener: Callable[[Process], None]) -> None:
        """Call a function after each answer of a process."""
        self._listeners.append(listener)

    def at(self, number: int) -> Process:
        """Return the process of a number. Raises ConfigError."""
        if not 0 <= number < len(self.processes):
            raise ConfigError(f"there is no process {number}: the console knows {len(self.processes)}")
        return self.processes[number]

    async def wait(self, version: int, timeout: float) -> bool:
        """Wait until there is an answer after ``version``; return False after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout), self._answered:
                await self._answered.wait_for(lambda: self.version > version)
        except TimeoutError:
            return False
        return True

    async def announce(self) -> None:
        """Wake those that `wait` for an answer."""
        async with self._answered:
            self.version += 1
            self._answered.notify_all()

    async def ask(
        self, server: Process, path: str, *, method: str = "GET", document: Any = None, timeout: float = _TIMEOUT
    ) -> Any:
        """Return the JSON that answers a request. Raises Unreachable, and Refused with the text of an error."""
        body = None if document is None else orjson.dumps(document)
        return orjson.loads((await self._request(server, path, method, body, timeout)).content)

    def stream(self, server: Process, path: str) -> AbstractAsyncContextManager[httpx2.Response]:
        """Return the context of an answer that is read line by line; silent for 40 seconds at most."""
        return self._clients[server.number].opened("GET", path, timeout=40.0)

    async def _request(
        self, server: Process, path: str, method: str = "GET", body: bytes | None = None, timeout: float = _TIMEOUT
    ) -> httpx2.Response:
        async with self._clients[server.number].opened(method, path, body, timeout=timeout) as response:
            await response.aread()
        if response.status_code >= 300:
            message = f"{_problem_text(response)} (HTTP {response.status_code} of {server.url})"
            raise Refused(message, response.status_code)
        return response

    async def _follow(self, server: Process) -> None:
        next_sample = 0.0
        while True:
            try:
                status, error = await self.ask(server, "/v1/status", timeout=_STATUS_TIMEOUT), None
            except (CompactoryError, ValueError) as failure:
                status, error = None, str(failure)
            server.note(status, error)
            await self.announce()
            for listener in self._listeners:
                listener(server)
            if time.monotonic() >= next_sample:
                next_sample = time.monotonic() + _SAMPLE_SECONDS - 0.1
                server.sample(await self._lookups(server))
            await asyncio.sleep(_POLL_SECONDS)

    async def _lookups(self, server: Process) -> float | None:
        """Return how many lookups the process has answered; None where it serves none."""
        if not server.directories:
            return None
        try:
            text = (await self._request(server, "/metrics", timeout=_STATUS_TIMEOUT)).text
        except CompactoryError:
            return None
        lines = "\n".join(
            line for line in text.splitlines() if line.startswith("compactory_http_request_seconds_count")
        )
        families = text_string_to_metric_families(lines)
        return sum(
            sample.value for family in families for sample in family.samples if sample.labels.get("route") == _LOOKUP
        )


def directory_path(name: str) -> str:
    """Return the path of a directory in the HTTP API."""
    return f"/v1/directories/{quote(name, safe='')}"


def _problem_text(response: httpx2.Response) -> str:
    try:
        document = orjson.loads(response.content)
        return str(document.get("detail") or document.get("title"))
    except (ValueError, AttributeError):
        return response.reason_phrase


def _topic_of(item: Any) -> Any:
    return item.get("topic") if isinstance(item, dict) else None
