"""The thread of a member of a consumer group, and its probes. Times are in seconds."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from typing import Any, Generic, Self, TypeVar

import structlog

from compactory.errors import CompactoryError, StartTimeout, Unreachable
from compactory_connectors.backoff import Backoff
from compactory_connectors.figures import BoardWorker

from .consumer_group import Group

__all__ = ["GroupThread", "MemberWorker"]

G = TypeVar("G", bound=Group)


class GroupThread(ABC, Generic[G]):
    """A thread that works as a member of a consumer group until :meth:`stop`. Thread-safe; start it once.

    A subclass has a ``board`` and three methods: `_check`, `_join` and `_live`. States: LIVE → WAITING → LIVE for
    outages of servers, during which polls keep the membership; any → ENDED with ``failure`` for other errors.
    """

    board: Any

    def __init__(self, kind: str, name: str) -> None:
        self.failure: CompactoryError | None = None
        """The error that ended the thread; None while it works, and after :meth:`stop`."""
        self._title = f"{kind} {name!r}"
        self._log_fields = {kind: name}
        self._log = structlog.get_logger(f"compactory.{kind}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"compactory-{kind}-{name}", daemon=True)

    def start(self) -> None:
        """Check configuration and rights, then work in the background. Waits there for servers. Raises ConfigError."""
        try:
            self._check()
        except Unreachable as error:
            self._note(error)
        self._thread.start()

    def stop(self, timeout: float = 15.0) -> bool:
        """Finish the current work and leave the group. Return True if the thread has ended. Idempotent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the thread to end; return True if it has ended. Raises `failure`."""
        self._thread.join(timeout)
        if self.failure is not None:
            raise self.failure
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """True until the thread has ended, also while it waits for a server."""
        return self._thread.ident is None or self._thread.is_alive()

    @abstractmethod
    def _check(self) -> None:
        """Check configuration and rights. Raises Unreachable, ConfigError."""

    @abstractmethod
    def _join(self) -> G:
        """Return a member of the group."""

    @abstractmethod
    def _live(self, group: G, worked: Callable[[], None]) -> None:
        """Attach the group and work until `_stop` is set. Call ``worked`` after each success. Raises Unreachable."""

    def _run(self) -> None:
        """Work until `_stop` is set. An error that ends the thread is kept in ``failure``."""
        try:
            with closing(self._join()) as group:
                self._work(group)
        except CompactoryError as error:
            self._end(error)
        except BaseException as error:  # noqa: BLE001 (a defect, or sys.exit in a handler: reported)
            self._log.exception("failed", **self._log_fields)
            self._end(CompactoryError(f"{self._title} failed: {type(error).__name__}"))

    def _work(self, group: G) -> None:
        """Work; after an outage of a server or the loss of the membership, wait and begin again."""
        backoff, pause = Backoff(), 0.0
        while not self._stop.is_set():
            try:
                self._idle(group, pause)
                self._live(group, backoff.reset)
            except (Unreachable, StartTimeout) as error:
                self._note(error)
                group.detach()
                pause = backoff.pause()

    def _note(self, error: CompactoryError) -> None:
        self.board.detail = str(error)
        self._log.warning("waiting", **self._log_fields, error=" ".join(str(error).split()))

    def _end(self, error: CompactoryError) -> None:
        self.failure = error
        self.board.detail = str(error)
        self._log.error("ended", **self._log_fields, error=str(error))

    def _idle(self, group: Group, seconds: float) -> None:
        """Poll without reading, so that the membership is kept."""
        until = time.monotonic() + seconds
        while not self._stop.is_set() and time.monotonic() < until:
            group.poll(1, 0.1)
            self.board.polled_at = time.monotonic()


class MemberWorker(BoardWorker):
    """The probes of a member. Ready once it has had partitions and their start offsets. Thread-safe."""

    def __init__(self, member: Any, name: str, polling_ttl: float) -> None:
        super().__init__(member, name)
        self._ttl = polling_ttl

    def live(self) -> bool:
        """Return True if the member polls Kafka in time, or waits for a server."""
        return super().live() and time.monotonic() - self._board.polled_at < self._ttl
