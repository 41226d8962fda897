"""Spark: directories as DataFrames; rows enriched by them; loads, exports and comparisons as jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .registration import register

if TYPE_CHECKING:
    from .enriching import enrich

__all__ = ["enrich", "register"]


def __getattr__(name: str) -> Any:
    """Load `enrich` when it is asked for: commands that start no Spark need no PySpark."""
    if name != "enrich":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .enriching import enrich

    return enrich
