"""A column as the catalogue describes it."""

from __future__ import annotations

from dataclasses import dataclass

from .column_shape import Shape

__all__ = ["Column"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. A domain shows as its base type, as in a result's row description."""

    name: str
    type: str
    """Name in ``pg_type``, such as ``int8``."""
    type_schema: str = "pg_catalog"
    type_kind: str = "b"
    """``pg_type.typtype``: b base, c composite, e enum, m multirange, p pseudo, r range."""
    typmod: int = -1
    not_null: bool = False
    """The column's own NOT NULL, or its domain's."""
    declared: str = ""
    """The type as SQL writes it, domains as such: ``character varying(20)``."""
    numbers_itself: bool = False
    """An identity column, or one whose default is ``nextval``."""
    shape: Shape | None = None
    """What the type is made of; None where nobody asked the catalogue, as for a query."""
