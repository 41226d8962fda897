"""A column and its type as the catalogue describes them. Pure data.

Domains show as their base types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "Column",
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
