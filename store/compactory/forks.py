"""What a forked child must not destroy: clients and databases whose threads only the parent has."""

from __future__ import annotations

import ctypes

__all__ = ["keep_forever"]


def keep_forever(handle: object) -> None:
    """See to it that an object is never destroyed, not even when the interpreter ends.

    Destroying it would wait for threads that a forked child does not have.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
