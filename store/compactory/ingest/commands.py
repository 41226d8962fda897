"""Calls that other threads have the reader's thread make, between two batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from compactory.clock import clock
from compactory.errors import WaitTimeout

__all__ = ["Command", "Commands"]

R = TypeVar("R")
_LOOK = 0.1  # seconds between two looks at whether there is a thread at all


class Command:
    """A call, and the answer that its caller waits for."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.answer: Future[Any] = Future()
        self._function = function
        self.settle: Callable[[], None] = lambda: None  # gives the caller the answer, after `call`

    def call(self) -> None:
        """Make the call; its error is the caller's."""
        try:
            self.settle = partial(self.answer.set_result, self._function())
        except BaseException as error:  # noqa: BLE001 (it is the caller's, not the reader's)
            self.settle = partial(self.answer.set_exception, error)


class Commands:
    """The queue of these calls. Any thread adds to it, the reader's thread takes from it.

    ``raise_end`` raises the error that says that the thread has ended, once it has.
    """

    def __init__(self, raise_end: Callable[[], None]) -> None:
        self._raise_end = raise_end
        self._waiting: deque[Command] = deque()

    def run(self, function: Callable[[], R], timeout: float) -> R:
        """Have the reader's thread make a call; return its answer.

        Raises WaitTimeout (a call that was begun goes on), and StoreFailed or StoreClosed where there is no thread any
        more.
        """
        command = Command(function)
        answer: Future[R] = command.answer
        self._waiting.append(command)
        deadline = clock() + timeout
        while True:
            self._raise_end()
            try:
                return answer.result(min(_LOOK, max(0.0, deadline - clock())))
            except TimeoutError:
                if answer.done():
                    return answer.result()  # the call itself may raise such an error
                if clock() >= deadline:
                    how = "did not get to it" if answer.cancel() else "is not done with it"
                    raise WaitTimeout(f"the reader {how} in {timeout:g} s", {}) from None

    def taken(self) -> Iterator[Command]:
        """Take the calls out of the queue, one by one, without those that were given up."""
        while self._waiting:
            command = self._waiting.popleft()
            if command.answer.set_running_or_notify_cancel():
                yield command
