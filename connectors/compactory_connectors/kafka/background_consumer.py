"""A thread that works for a consumer group until it is stopped."""

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

from .consumer_group import Group

__all__ = ["Background"]

G = TypeVar("G", bound=Group)


class Background(ABC, Generic[G]):
    """Thread-safe; start it once. A subclass has a ``board``, and says what to check, how to join and what to do."""

    board: Any

    def __init__(self, kind: str, name: str) -> None:
        self.failure: CompactoryError | None = None
        """Why it has ended by itself."""
        self._told = {kind: name}
        self._log = structlog.get_logger(f"compactory.{kind}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"compactory-{kind}-{name}", daemon=True)

    def start(self) -> None:
        """Check what it needs, then work in the background; what is away is waited for. Raises ConfigError."""
        try:
            self._check()
        except Unreachable as error:
            self._note(error)
        self._thread.start()

    def stop(self, timeout: float = 15.0) -> bool:
        """End what is under way and leave the group; whether that ended within ``timeout`` seconds. Idempotent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended by itself or was stopped; whether it has. Raises why it ended."""
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
        """Whether it has not ended: one that still waits for a server at its start is alive."""
        return self._thread.ident is None or self._thread.is_alive()

    @abstractmethod
    def _check(self) -> None:
        """Look for what it needs. Raises Unreachable, ConfigError."""

    @abstractmethod
    def _join(self) -> G:
        """Become a member of the group."""

    @abstractmethod
    def _live(self, group: G, worked: Callable[[], None]) -> None:
        """Attach the group and work until `_stop` is set; call ``worked`` for progress. Raises Unreachable."""

    def _run(self) -> None:
        """Work until `_stop` is set; leave in ``failure`` why it ended before."""
        try:
            with closing(self._join()) as group:
                self._work(group)
        except CompactoryError as error:
            self._end(error)
        except BaseException as error:  # noqa: BLE001 (a defect of ours, or sys.exit in a user's code: it is told)
            self._log.exception("failed", **self._told)
            [(kind, name)] = self._told.items()
            self._end(CompactoryError(f"{kind} {name!r} failed: {type(error).__name__}"))

    def _work(self, group: G) -> None:
        """Live. If a server is lost or the group goes on without us, wait for a growing time and begin anew."""
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
        self.board.error = str(error)
        self._log.warning("nothing is done for now", **self._told, error=" ".join(str(error).split()))

    def _end(self, error: CompactoryError) -> None:
        self.failure = error
        self.board.error = str(error)
        self._log.error("ended", **self._told, error=str(error))

    def _idle(self, group: Group, seconds: float) -> None:
        """Stay in the group, and read nothing."""
        until = time.monotonic() + seconds
        while not self._stop.is_set() and time.monotonic() < until:
            group.poll(1, 0.1)
            self.board.polled_at = time.monotonic()
