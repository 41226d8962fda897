"""``compactory.transform``: a function of the user's behind all other transforms, as ``module:function``.

It is called with a :class:`SourceRecord` for every row and returns one, with another ``value`` if it likes, or None to
drop the row. If it raises, the row counts as one that can't be converted, about which ``errors.tolerance`` decides.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from ..record.record import Record
from .transform import Transform

__all__ = ["Function", "FunctionTransform", "SourceRecord", "load_function"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """A record as the function sees it. A struct is a dict that belongs to the function, which may change it.

    Dates are days since 1970-01-01, times milliseconds since midnight, timestamps milliseconds since
    1970-01-01T00:00Z, NUMERIC columns ``Decimal``, bytes ``bytes``.
    """

    topic: str
    key: Any
    value: Any

    def with_value(self, value: Any) -> SourceRecord:
        """The same record with this value; None is a tombstone, which deletes the key."""
        return replace(self, value=value)


Function: TypeAlias = Callable[[SourceRecord], SourceRecord | None]


@dataclass(frozen=True, slots=True)
class FunctionTransform(Transform):
    """Has ``function`` called for every row, once all other transforms are done."""

    function: Function
    name: str

    def apply(self, record: Record) -> Record:
        """``record`` with the function behind it."""
        return replace(record, function=self)


def load_function(text: str) -> FunctionTransform:
    """Import what ``module:function`` names. Raises ValueError, saying what is wrong with it."""
    module_name, colon, name = text.strip().partition(":")
    if not module_name or not colon or not name:
        raise ValueError(f"must be module:function, not {text!r}")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"module {module_name} can't be imported ({error}); install it or add it to PYTHONPATH"
        ) from None
    except Exception as error:
        raise ValueError(f"module {module_name} raised {type(error).__name__} while it was imported") from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise ValueError(f"module {module_name} has no function {name}")
    return FunctionTransform(cast("Function", found), text.strip())
