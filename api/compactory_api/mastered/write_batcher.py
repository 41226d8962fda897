"""Joins the writes of one event-loop turn for the directory's writer, and writes the audit log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from compactory.errors import CompactoryError
from compactory.write.operation import Operation, OperationBatch, Written, WrittenBatch
from compactory_mastered.writer import MasteredWriter

__all__ = ["Result", "WriteBatcher"]

_audit = logging.getLogger("compactory.audit")

Result = Written | CompactoryError


class _Submission(NamedTuple):
    operations: Sequence[Operation]
    caller: str
    results: asyncio.Future[list[Result]]


class WriteBatcher:
    """Passes all writes to one directory that arrive in one event-loop turn to its writer at once.

    Passing operations to another thread costs as much as a write. Owned by the event loop.
    """

    def __init__(self, writer: MasteredWriter) -> None:
        self.writer = writer
        self._submissions: list[_Submission] = []

    def submit(self, operations: Sequence[Operation], caller: str) -> asyncio.Future[list[Result]]:
        """Return the future of `MasteredWriter.submit` for this event loop. Writes are audited before it is done."""
        loop = asyncio.get_running_loop()
        if not self._submissions:
            loop.call_soon(self._pass_on, loop)
        submission = _Submission(operations, caller, loop.create_future())
        self._submissions.append(submission)
        return submission.results

    async def write_batch(self, batch: OperationBatch, caller: str) -> WrittenBatch:
        """Write a batch. Raises what `MasteredWriter.submit` raises, and the error of a refused batch.

        The batch is audited also if the caller does not wait any more.
        """
        writing = asyncio.wrap_future(self.writer.submit([batch]))
        writing.add_done_callback(lambda finished: self._audit_batch(batch, finished, caller))
        [result] = await asyncio.shield(writing)
        if isinstance(result, CompactoryError):
            raise result
        return result

    def _audit_batch(
        self, batch: OperationBatch, finished: asyncio.Future[list[WrittenBatch | CompactoryError]], caller: str
    ) -> None:
        if finished.exception() is None and isinstance(result := finished.result()[0], WrittenBatch):
            self._audit(self._audit_lines(batch.operations, result.results, caller))

    def _audit(self, lines: Sequence[str]) -> None:
        if lines:  # one log record costs as much as ten lines; a handler splits it by this attribute
            _audit.info("%s", "\n".join(lines), extra={"line_by_line": True})

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        submissions, self._submissions = self._submissions, []

        def done(finished: Future[list[Result]]) -> None:
            with suppress(RuntimeError):  # the event loop has ended, so no request waits
                loop.call_soon_threadsafe(self._settle, submissions, finished)

        operations = [operation for submission in submissions for operation in submission.operations]
        self.writer.submit(operations).add_done_callback(done)

    def _settle(self, submissions: Sequence[_Submission], finished: Future[list[Result]]) -> None:
        error = finished.exception()
        if error is not None:
            for submission in submissions:
                if not submission.results.done():  # it is after the client has disconnected
                    submission.results.set_exception(error)
            return
        all_results, start = finished.result(), 0
        audit_lines, is_audited = list[str](), _audit.isEnabledFor(logging.INFO)
        for operations, caller, future in submissions:
            results = all_results[start : start + len(operations)]
            start += len(operations)
            if is_audited:
                audit_lines += self._audit_lines(operations, results, caller)
            if not future.done():
                future.set_result(results)
        self._audit(audit_lines)

    def _audit_lines(self, operations: Sequence[Operation], results: Sequence[Result], caller: str) -> list[str]:
        """Return a line for each write: who wrote which key, and its token, but never the value."""
        directory = self.writer.directory.name
        lines = []
        for operation, written in zip(operations, results, strict=True):
            if isinstance(written, Written):
                repeated = " (repeated)" if written.repeated else ""
                lines.append(
                    f"{operation.kind} of {written.key!r} in {directory} at {written.token}{repeated} by {caller}"
                )
        return lines
