"""Which tables a connector polls, and by which columns: names, patterns and mappings, as the real connector reads them.

Pure: the relations come from the catalogue. Sources: ``TableMonitorThread`` and ``TableCollectionUtils`` of the
connector; ``getTables`` of pgjdbc for kinds and ``schema.pattern``. Patterns are RE2's there, which spells alike what
Compactory takes of Java's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from compactory_connectors.connect.javatext.java_regex import java_pattern
from compactory_connectors.connect.setting import names, nearest

__all__ = [
    "ColumnMapping",
    "Relation",
    "RelationKind",
    "TableName",
    "TableSelection",
    "column_mapping",
    "columns_mapping",
    "patterns",
    "table_types",
]


class RelationKind(StrEnum):
    """A kind of relation that can be polled, by ``pg_class.relkind``; or a query."""

    TABLE = "r"
    PARTITIONED_TABLE = "p"
    VIEW = "v"
    MATERIALIZED_VIEW = "m"
    FOREIGN_TABLE = "f"
    QUERY = "q"

    @property
    def label(self) -> str:
        """The kind in words: ``materialized view``. JDBC has the same in capitals."""
        return self.name.lower().replace("_", " ")

    @property
    def is_table(self) -> bool:
        """True for a table and a partitioned table: their rows have versions."""
        return self in {RelationKind.TABLE, RelationKind.PARTITIONED_TABLE}

    @property
    def can_have_indexes(self) -> bool:
        """True for tables and materialized views."""
        return self.is_table or self is RelationKind.MATERIALIZED_VIEW


_KINDS = {kind.label.upper(): kind for kind in RelationKind if kind is not RelationKind.QUERY}
_NONE_OF_POSTGRES = {"GLOBAL TEMPORARY", "LOCAL TEMPORARY", "ALIAS", "SYNONYM"}
_OF_THE_SYSTEM = {"SYSTEM TABLE", "SYSTEM VIEW", "SYSTEM TOAST TABLE", "TEMPORARY TABLE", "TEMPORARY VIEW"}


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as the connector writes it; ``schema`` None: the schema that has it."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    def matches(self, relation: Relation) -> bool:
        return self.name == relation.name and self.schema in {None, relation.schema}


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A relation of the catalogue that could be polled."""

    oid: int
    schema: str
    name: str
    kind: RelationKind
    partition: bool = False
    """It is a part of a partitioned table."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """``regex:columns`` of one of the keys ``…mapping``."""

    pattern: re.Pattern[str]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSelection:
    """Tables by name, or those that patterns find. Without either, all of ``kinds`` in ``schemas``."""

    listed: tuple[TableName, ...] = ()
    unlisted: tuple[TableName, ...] = ()
    included: tuple[re.Pattern[str], ...] = ()
    excluded: tuple[re.Pattern[str], ...] = ()
    schemas: str | None = None
    """``schema.pattern``, a pattern of LIKE."""
    kinds: frozenset[RelationKind] = frozenset({RelationKind.TABLE})

    @property
    def key(self) -> str:
        """The key that a message about this selection should name."""
        if self.listed or not (self.unlisted or self.included):
            return "table.whitelist"
        return "table.blacklist" if self.unlisted else "table.include.list"

    def nothing(self, server: str) -> str:
        """Return the message when no table of ``server`` is chosen."""
        hint = "; a pattern must fit the whole of schema.table" if self.included else ""
        return f"{self.key}: no table of {server} fits{hint}"

    def choose(self, relations: Iterable[Relation]) -> list[Relation]:
        """Return the relations that are polled: in the order of the list, else in theirs."""
        fitting = [relation for relation in relations if self._in_schemas(relation) and self._of_kind(relation)]
        if self.listed:
            return list(
                dict.fromkeys(relation for name in self.listed for relation in fitting if name.matches(relation))
            )
        if self.included:
            return [relation for relation in fitting if self._matched(relation)]
        return [relation for relation in fitting if not any(name.matches(relation) for name in self.unlisted)]

    def missing(self, relations: Iterable[Relation], where: str) -> list[str]:
        """Return a problem for each listed name that nothing has; ``where`` says who looked."""
        candidates = list(relations)
        problems = []
        for name in self.listed:
            named = [relation for relation in candidates if name.matches(relation)]
            if not named:
                close = nearest(str(name), [str(item) if name.schema else item.name for item in candidates])
                problems.append(f"table.whitelist: {name}: {where}{close}")
            elif not any(self._in_schemas(relation) for relation in named):
                problems.append(f"table.whitelist: {name}: is not in a schema that schema.pattern {self.schemas} fits")
            elif not any(self._of_kind(relation) for relation in named):
                kind = named[0].kind.label
                problems.append(f"table.whitelist: {name}: is a {kind}; add {kind.upper()} to table.types")
        return problems

    def clashes(self, chosen: Iterable[Relation]) -> list[str]:
        """Return a problem for each table name that several schemas have: their topic would be the same."""
        by_name: dict[str, list[str]] = {}
        for relation in chosen:
            by_name.setdefault(relation.name, []).append(str(relation))
        return [
            f"{self.key}: {' and '.join(tables)} would share a topic, which is named after the table alone; choose one"
            " of them, with its schema, or give each a connector with a topic.prefix of its own"
            for tables in by_name.values()
            if len(tables) > 1
        ]

    def _matched(self, relation: Relation) -> bool:
        name = str(relation)
        return any(pattern.fullmatch(name) for pattern in self.included) and not any(
            pattern.fullmatch(name) for pattern in self.excluded
        )

    def _in_schemas(self, relation: Relation) -> bool:
        return not self.schemas or _like(self.schemas).fullmatch(relation.schema) is not None

    def _of_kind(self, relation: Relation) -> bool:
        """A partitioned table that is listed by its name counts as a table."""
        counts_as_table = bool(self.listed) and relation.kind.is_table and RelationKind.TABLE in self.kinds
        return relation.kind in self.kinds or counts_as_table


def patterns(value: str) -> tuple[re.Pattern[str], ...]:
    """Return the regular expressions of a comma separated list."""
    return tuple(_pattern(item) for item in names(value))


def table_types(value: str) -> frozenset[RelationKind]:
    """Return the kinds of relations that a comma separated list of JDBC's table types names."""
    kinds = set()
    for item in names(value):
        name = item.upper()
        if name in _OF_THE_SYSTEM:
            raise ValueError(f"must not name {name}: the system's and temporary tables can't be polled")
        if name in _KINDS:
            kinds.add(_KINDS[name])
        elif name not in _NONE_OF_POSTGRES:
            raise ValueError(f"must be of {', '.join(_KINDS)}")
    if not kinds:
        raise ValueError(f"must name at least one of {', '.join(_KINDS)}")
    return frozenset(kinds)


def column_mapping(value: str) -> tuple[ColumnMapping, ...]:
    """Return the mappings of ``regex:column,…``."""
    return _mapping(value, "regex:column", lambda column: [column])


def columns_mapping(value: str) -> tuple[ColumnMapping, ...]:
    """Return the mappings of ``regex:[column|column],…``."""
    return _mapping(
        value,
        "regex:[column|column]",
        lambda listed: listed[1:-1].split("|") if listed.startswith("[") and listed.endswith("]") else [],
    )


def _mapping(value: str, form: str, columns_in: Callable[[str], list[str]]) -> tuple[ColumnMapping, ...]:
    mappings = []
    for item in names(value):
        pattern, colon, written = item.partition(":")
        columns = tuple(column.strip() for column in columns_in(written.strip()))
        if not colon or ":" in written or not columns or not all(columns):
            raise ValueError(f"must be {form}, separated by commas")
        mappings.append(ColumnMapping(_pattern(pattern.strip()), columns))
    return tuple(mappings)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return java_pattern(text)
    except ValueError as error:
        raise ValueError(f"must be regular expressions: {error}") from None


def _like(pattern: str) -> re.Pattern[str]:
    """A pattern of SQL's LIKE."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return re.compile("".join(wild.get(part) or re.escape(part[-1]) for part in parts), re.DOTALL)
