"""The queue of calls that other threads ask the reader's thread to make, between two batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from compactory.clock import clock
from compactory.errors import WaitTimeout

__all__ = ["Command", "CommandQueue"]

R = TypeVar("R")
_CHECK_INTERVAL = 0.1  # seconds between two checks that the reader's thread has not ended


class Command:
    """A call, with the future that its caller waits for."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._function = function

    def call(self) -> Callable[[], None]:
        """Make the call. Return a function that gives the caller its result or error."""
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 (it is the caller's, not the reader's)
            return partial(self.future.set_exception, error)
        return partial(self.future.set_result, result)


class CommandQueue:
    """The queue of commands. Any thread adds to it, the reader's thread takes from it.

    ``raise_end`` raises StoreFailed or StoreClosed once the reader's thread has ended.
    """

    def __init__(self, raise_end: Callable[[], None]) -> None:
        self._raise_end = raise_end
        self._commands: deque[Command] = deque()

    def run(self, function: Callable[[], R], timeout: float) -> R:
        """Call ``function`` in the reader's thread; return the result or raise its error.

        Raises WaitTimeout (a call that was begun goes on), StoreFailed, StoreClosed.
        """
        command = Command(function)
        future: Future[R] = command.future
        self._commands.append(command)
        deadline = clock() + timeout
        while True:
            self._raise_end()
            try:
                return future.result(min(_CHECK_INTERVAL, max(0.0, deadline - clock())))
            except TimeoutError:
                if future.done():
                    return future.result()  # the call itself may raise such an error
                if clock() >= deadline:
                    problem = "did not get to it" if future.cancel() else "is not done with it"
                    raise WaitTimeout(f"the reader {problem} in {timeout:g} s", {}) from None

    def take(self) -> Iterator[Command]:
        """Take the commands out of the queue, one by one, and yield those whose callers still wait."""
        while self._commands:
            command = self._commands.popleft()
            if command.future.set_running_or_notify_cancel():
                yield command
