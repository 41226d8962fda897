"""A column as the catalogue describes it, and the connector's options of turning columns into values. Pure data.

Domains show as their base types. Options: ``NumericMapping``, ``TimestampGranularity`` of ``JdbcSourceConnectorConfig``
and ``DateCalendarSystem`` of the connector 10.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

__all__ = [
    "Calendar",
    "Column",
    "ColumnOptions",
    "ColumnTypes",
    "Granularity",
    "NumericMapping",
    "Shape",
    "shapes_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One type: an array when it has an ``element``, a composite when it has ``attributes``, else a plain one."""

    type: str
    """Name in ``pg_type``, such as ``int8``."""
    type_schema: str = "pg_catalog"
    type_kind: str = "b"
    """``pg_type.typtype``: b base, c composite, e enum, m multirange, p pseudo, r range."""
    typmod: int = -1
    element: Shape | None = None
    dimensions: int = 1
    """As declared; Postgres does not hold values to it."""
    attributes: tuple[tuple[str, Shape], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Shape):
    """One column and its type. A domain shows as its base type, as in a result's row description."""

    name: str
    not_null: bool = False
    """The column's own NOT NULL, or its domain's."""
    declared: str = ""
    """The type as SQL writes it, domains as such: ``character varying(20)``."""
    numbers_itself: bool = False
    """An identity column, or one whose default is ``nextval``."""

    def made_of(self, shape: Shape) -> Column:
        """With the parts of its type."""
        return replace(self, element=shape.element, dimensions=shape.dimensions, attributes=shape.attributes)


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


class Calendar(Enum):
    """``date.calendar.system``: the calendar of days before 1582-10-15."""

    LEGACY = "LEGACY"
    PROLEPTIC_GREGORIAN = "PROLEPTIC_GREGORIAN"


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
    calendar: Calendar = Calendar.LEGACY
    types: ColumnTypes = ColumnTypes.CONNECTOR


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    schema: str
    kind: str
    base: int
    typmod: int
    dimensions: int
    element: int | None
    attributes: list[tuple[str, int, int, int]] | None


def shapes_of(columns: Iterable[tuple[Any, ...]], types: Iterable[tuple[Any, ...]]) -> Mapping[str, Shape]:
    """The shape of each column by its name, of the rows of ``shape/columns`` and ``shape/types``."""
    known = {oid: _Type(*rest) for oid, *rest in types}
    return {name: _shape(known, oid, typmod, dimensions) for name, oid, typmod, dimensions in columns}


def _shape(known: Mapping[int, _Type], oid: int, typmod: int, dimensions: int) -> Shape:
    kind = known[oid]
    while kind.base:
        typmod = kind.typmod if kind.typmod >= 0 else typmod
        dimensions = kind.dimensions or dimensions
        kind = known[kind.base]
    return Shape(
        type=kind.name,
        type_schema=kind.schema,
        type_kind=kind.kind,
        typmod=typmod,
        element=None if kind.element is None else _shape(known, kind.element, typmod, 1),
        dimensions=max(1, dimensions),
        attributes=tuple((name, _shape(known, *rest)) for name, *rest in kind.attributes or ()),
    )
