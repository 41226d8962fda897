"""Writes that come within one turn of the event loop, handed to the directory's writer together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from compactory.errors import CompactoryError
from compactory.mastered.operation import Operation, Written
from compactory.mastered.writer import MasteredWriter

from .audit import note

__all__ = ["Turn"]

Result = Written | CompactoryError


class Turn:
    """One directory's. Each hand-over between threads costs as much as a write, so it happens once a turn.

    Owned by the event loop.
    """

    def __init__(self, writer: MasteredWriter) -> None:
        self._writer = writer
        self._waiting: dict[bool, list[tuple[Operation, str, asyncio.Future[Result]]]] = {False: [], True: []}

    def submit(self, operation: Operation, caller: str, take_over: bool) -> asyncio.Future[Result]:
        """Return the future of what `MasteredWriter.submit` gives or raises for an operation; it is audited before."""
        loop = asyncio.get_running_loop()
        waiting, answer = self._waiting[take_over], loop.create_future()
        if not waiting:
            loop.call_soon(self._hand_over, take_over, loop)
        waiting.append((operation, caller, answer))
        return answer

    def _hand_over(self, take_over: bool, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting[take_over] = self._waiting[take_over], []
        under_way = self._writer.submit([operation for operation, _, _ in waiting], take_over=take_over)

        def done(finished: Future[list[Result]]) -> None:
            with suppress(RuntimeError):  # the loop has ended: the server waits for no requests any more
                loop.call_soon_threadsafe(self._settle, waiting, finished)

        under_way.add_done_callback(done)

    def _settle(
        self, waiting: Sequence[tuple[Operation, str, asyncio.Future[Result]]], finished: Future[list[Result]]
    ) -> None:
        error = finished.exception()
        results = finished.result() if error is None else []
        lines = zip(waiting, results, strict=error is None)
        note(self._writer.directory.name, ((operation, result, caller) for (operation, caller, _), result in lines))
        for number, (_, _, answer) in enumerate(waiting):
            if answer.done():  # who asked has gone
                continue
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(results[number])
