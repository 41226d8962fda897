"""Writes that come within one turn of the event loop, handed to the directory's writer together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from compactory.errors import CompactoryError
from compactory.mastered.operation import Operation, Written
from compactory.mastered.writer import MasteredWriter

__all__ = ["Turn"]

Result = Written | CompactoryError


class Turn:
    """One directory's. Each hand-over between threads costs as much as a write, so it happens once a turn.

    Owned by the event loop.
    """

    def __init__(self, writer: MasteredWriter) -> None:
        self._writer = writer
        self._waiting: dict[bool, list[tuple[Operation, asyncio.Future[Result]]]] = {False: [], True: []}

    def submit(self, operation: Operation, take_over: bool) -> asyncio.Future[Result]:
        """Return the future of what `MasteredWriter.submit` gives or raises for an operation."""
        loop = asyncio.get_running_loop()
        waiting, answer = self._waiting[take_over], loop.create_future()
        if not waiting:
            loop.call_soon(self._hand_over, take_over, loop)
        waiting.append((operation, answer))
        return answer

    def _hand_over(self, take_over: bool, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting[take_over] = self._waiting[take_over], []
        under_way = self._writer.submit([operation for operation, _ in waiting], take_over=take_over)
        answers = [answer for _, answer in waiting]

        def done(finished: Future[list[Result]]) -> None:
            with suppress(RuntimeError):  # the loop has ended: the server waits for no requests any more
                loop.call_soon_threadsafe(_settle, answers, finished)

        under_way.add_done_callback(done)


def _settle(answers: Sequence[asyncio.Future[Result]], finished: Future[list[Result]]) -> None:
    error = finished.exception()
    for number, answer in enumerate(answers):
        if answer.done():  # who asked has gone
            continue
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(finished.result()[number])
