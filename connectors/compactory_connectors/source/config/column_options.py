"""Options that decide how columns become values. Pure data.

Source: ``NumericMapping`` and ``TimestampGranularity`` of ``JdbcSourceConnectorConfig`` of the connector 10.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["ColumnOptions", "ColumnTypes", "Granularity", "NumericMapping"]


class NumericMapping(Enum):
    """``numeric.mapping``: which NUMERIC columns become integers or doubles instead of Decimal."""

    NONE = "none"
    PRECISION_ONLY = "precision_only"
    BEST_FIT = "best_fit"
    BEST_FIT_EAGER_DOUBLE = "best_fit_eager_double"


class Granularity(Enum):
    """``timestamp.granularity``: what a timestamp becomes."""

    CONNECT_LOGICAL = "connect_logical"
    MICROS_LONG = "micros_long"
    MICROS_STRING = "micros_string"
    MICROS_ISO_DATETIME_STRING = "micros_iso_datetime_string"
    NANOS_LONG = "nanos_long"
    NANOS_STRING = "nanos_string"
    NANOS_ISO_DATETIME_STRING = "nanos_iso_datetime_string"


class ColumnTypes(Enum):
    """``compactory.types``: the types that the real connector supports, or all."""

    CONNECTOR = "connector"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOptions:
    """How the columns of a connector become values. The defaults are those of the real connector."""

    numeric_mapping: NumericMapping = NumericMapping.NONE
    granularity: Granularity = Granularity.CONNECT_LOGICAL
    zone: str = "UTC"
    """``db.timezone`` as it was written."""
    types: ColumnTypes = ColumnTypes.CONNECTOR
