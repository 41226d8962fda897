"""The parts of a handler's error that may be shown. The message may contain input of the handler or a secret. Pure."""

from __future__ import annotations

import traceback
from types import TracebackType

from compactory.errors import CompactoryError

__all__ = ["described", "frames"]

_CHARACTERS = 1000  # of a text
_FRAMES = 20  # the innermost


def described(error: BaseException, *own: type[BaseException]) -> str:
    """Return the class of an error; with its message if it is a CompactoryError or of a class in ``own``."""
    name = type(error).__name__
    text = f"{name}: {error}" if isinstance(error, (CompactoryError, *own)) else name
    return text[:_CHARACTERS].encode(errors="replace").decode()


def frames(trace: TracebackType | None) -> str:
    """Return file, line and function of the innermost calls, a line each, without any values."""
    calls = traceback.extract_tb(trace)[-_FRAMES:]
    return "\n".join(f"{call.filename}:{call.lineno} in {call.name}" for call in calls)
