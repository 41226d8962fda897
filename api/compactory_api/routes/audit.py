"""The audit trail of writes: who wrote what, and where it is; never values."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from compactory.errors import CompactoryError
from compactory.mastered.operation import Operation, Written

__all__ = ["note"]

_log = logging.getLogger("compactory.audit")


def note(directory: str, results: Iterable[tuple[Operation, Written | CompactoryError, str]]) -> None:
    """Log a line for each write of a transaction: operation, result and who asked for it.

    All are one record of the logger, which costs as much as ten lines do; ``line_by_line`` has the handler part them.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    lines = [
        f"{operation.kind} of {result.key!r} in {directory} at {result.token}"
        f"{' (repeated)' if result.repeated else ''} by {caller}"
        for operation, result, caller in results
        if isinstance(result, Written)
    ]
    if lines:
        _log.info("%s", "\n".join(lines), extra={"line_by_line": True})
