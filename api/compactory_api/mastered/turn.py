"""Writes that come within one turn of the event loop, handed to the directory's writer together, and audited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from compactory.errors import CompactoryError
from compactory.write.operation import Operation
from compactory_mastered.writer import MasteredWriter
from compactory_mastered.written import Written

__all__ = ["Result", "Turn"]

_audit = logging.getLogger("compactory.audit")

Result = Written | CompactoryError
Waiting = tuple[Sequence[Operation], str, "asyncio.Future[list[Result]]"]


class Turn:
    """Joins the writes to one directory that arrive in one event-loop turn, and passes them to the writer together.

    Passing operations to another thread costs as much as a write.

    Owned by the event loop.
    """

    def __init__(self, writer: MasteredWriter) -> None:
        self.writer = writer
        self._waiting: list[Waiting] = []

    def submit(self, operations: Sequence[Operation], caller: str) -> asyncio.Future[list[Result]]:
        """Return the future of what `MasteredWriter.submit` gives or raises; writes are audited before it is done."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._hand_over, loop)
        answer: asyncio.Future[list[Result]] = loop.create_future()
        self._waiting.append((operations, caller, answer))
        return answer

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, []
        operations = [operation for batch, _, _ in waiting for operation in batch]
        under_way = self.writer.submit(operations)

        def done(finished: Future[list[Result]]) -> None:
            with suppress(RuntimeError):  # the loop has ended: the server waits for no requests any more
                loop.call_soon_threadsafe(self._settle, waiting, finished)

        under_way.add_done_callback(done)

    def _settle(self, waiting: Sequence[Waiting], finished: Future[list[Result]]) -> None:
        error, audited = finished.exception(), _audit.isEnabledFor(logging.INFO)
        results, start, lines = finished.result() if error is None else [], 0, list[str]()
        for operations, caller, answer in waiting:
            batch_results = results[start : start + len(operations)]
            start += len(operations)
            for operation, result in zip(operations, batch_results, strict=False):  # none where there is an error
                if audited and isinstance(result, Written):
                    lines.append(self._line(operation, result, caller))
            if answer.done():  # the client has disconnected
                continue
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(batch_results)
        # One record of the logger costs as much as ten lines do; the attribute has the handler part it.
        if lines:
            _audit.info("%s", "\n".join(lines), extra={"line_by_line": True})

    def _line(self, operation: Operation, written: Written, caller: str) -> str:
        """Return the audit's line of a write: who wrote which key, and where it is; never its value."""
        repeated = " (repeated)" if written.repeated else ""
        where = f"in {self.writer.directory.name} at {written.token}"
        return f"{operation.kind} of {written.key!r} {where}{repeated} by {caller}"
