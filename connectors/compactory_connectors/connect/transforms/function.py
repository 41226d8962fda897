"""``compactory.transform``: a user's function after all other transforms, as ``module:function``.

The function gets a :class:`SourceRecord` for every row. It returns one, whose ``value`` may differ, or None to drop the
row. If it raises, the row can't be converted, and ``errors.tolerance`` decides what happens.
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
    """The record that the function gets. A struct is a dict, which the function may change.

    Dates are days since 1970-01-01, times milliseconds since midnight, timestamps milliseconds since
    1970-01-01T00:00Z, NUMERIC columns ``Decimal``, bytes ``bytes``.
    """

    topic: str
    key: Any
    value: Any

    def with_value(self, value: Any) -> SourceRecord:
        """Return the same record with this value; None is a tombstone, which deletes the key."""
        return replace(self, value=value)


Function: TypeAlias = Callable[[SourceRecord], SourceRecord | None]


@dataclass(frozen=True, slots=True)
class FunctionTransform(Transform):
    """The transform that has ``function`` called for every row, after all others."""

    function: Function
    name: str

    def apply(self, record: Record) -> Record:
        return replace(record, function=self)


def load_function(text: str) -> FunctionTransform:
    """Import the function that ``module:function`` names. Raises ValueError that says what is wrong."""
    module_name, colon, name = text.strip().partition(":")
    if not module_name or not colon or not name:
        raise ValueError(f"must be module:function, not {text!r}")
    try:
        target: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"module {module_name} can't be imported ({error}); install it or add it to PYTHONPATH"
        ) from None
    except Exception as error:
        raise ValueError(f"module {module_name} raised {type(error).__name__} while it was imported") from error
    for part in name.split("."):
        target = getattr(target, part, None)
    if not callable(target) or inspect.iscoroutinefunction(target):
        raise ValueError(f"module {module_name} has no function {name}")
    return FunctionTransform(cast("Function", target), text.strip())
