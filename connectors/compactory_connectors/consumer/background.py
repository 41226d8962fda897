"""A thread that works for a consumer group until it is stopped."""

from __future__ import annotations

import threading
import time
from typing import Any, Self

from compactory.errors import CompactoryError, Unreachable

from .group import Group

__all__ = ["Background"]


class Background:
    """Thread-safe; start it once. A subclass has a ``board``, and says what to check, note and do."""

    board: Any

    def __init__(self, name: str) -> None:
        self.failure: CompactoryError | None = None
        """Why it has ended by itself."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"compactory-{name}", daemon=True)

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

    def _check(self) -> None:
        """Look for what it needs. Raises Unreachable, ConfigError."""
        raise NotImplementedError

    def _note(self, error: CompactoryError) -> None:
        """Tell that nothing is done for now."""
        raise NotImplementedError

    def _run(self) -> None:
        """Work until `_stop` is set; leave in ``failure`` why it ended before."""
        raise NotImplementedError

    def _idle(self, group: Group, seconds: float) -> None:
        """Stay in the group, and read nothing."""
        until = time.monotonic() + seconds
        while not self._stop.is_set() and time.monotonic() < until:
            group.poll(1, 0.1)
            self.board.polled_at = time.monotonic()
