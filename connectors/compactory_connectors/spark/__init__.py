"""Spark: directories as DataFrames; rows enriched by them; loads, exports and comparisons as jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import pyspark as _pyspark  # noqa: F401  # whatever of this package is imported needs it
except ImportError:
    # Spark's processes import this module for a name, and are spared these.
    from compactory.errors import ConfigError, extra_remedy

    raise ConfigError(f"Spark jobs need PySpark: {extra_remedy('spark')}") from None

from .registration import register

if TYPE_CHECKING:
    from .enriching import enrich

__all__ = ["enrich", "register"]


def __getattr__(name: str) -> Any:
    """Load `enrich` when it is asked for: Spark's processes that plan a read import this module, and need no more."""
    if name != "enrich":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .enriching import enrich

    return enrich
