"""Spark: directories as DataFrames; rows enriched by them; loads and exports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import pyspark as _pyspark  # noqa: F401  # whatever of this package is imported needs it
except ImportError:
    # Spark's processes import this module for a name, and need nothing of the store then.
    from compactory.errors import ConfigError, extra_remedy

    raise ConfigError(f"Spark jobs need PySpark: {extra_remedy('spark')}") from None

if TYPE_CHECKING:
    from .enriching import enrich
    from .exporting import export
    from .loading import load
    from .registration import register
    from .schema import infer_schema

__all__ = ["enrich", "export", "infer_schema", "load", "register"]

_MODULES = {
    "enrich": ".enriching",
    "export": ".exporting",
    "infer_schema": ".schema",
    "load": ".loading",
    "register": ".registration",
}


def __getattr__(name: str) -> Any:
    """Import a function at its first use: Spark's processes that plan a read import this module, and need no more."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)
