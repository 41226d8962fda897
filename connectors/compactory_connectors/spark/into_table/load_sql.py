"""The statements of one load: named queries with the names of its table, columns and staging tables put in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from compactory_connectors.schema.catalogue import verbatim
from compactory_sql import query

from .loaded_table import LoadedTable

__all__ = ["LoadSql", "staging_table"]

_TRUE = sql.SQL("true")
_COMMA = sql.SQL(", ")


def staging_table(name: str) -> sql.Identifier:
    """A table of the schema where rows are staged."""
    return sql.Identifier("compactory_staging", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSql:
    """Statements about ``table`` and the rows of a load, which have the columns ``columns``.

    ``spared``: the keys that must stay as they are. ``everything``: the table was empty, so that no list of changes was
    made and the staged rows stand for it.
    """

    table: LoadedTable
    columns: tuple[str, ...]
    staged: str
    changes: str
    spared: str | None = None
    everything: bool = False

    @property
    def data(self) -> list[str]:
        """The columns that are compared, and set where they differ."""
        return [name for name in self.columns if name not in self.table.key and name != self.table.active]

    def render(self, name: str, **parts: sql.Composable) -> sql.Composed:
        """A named query of ``load.sql``."""
        return sql.SQL(query(f"load/{name}")).format(**{**self._parts(), **parts})

    def missing(self) -> sql.Composed:
        """Finds the keys that the load does not have."""
        unspared: sql.Composable = sql.SQL("")
        if self.spared is not None:
            unspared = self.render("unspared", spared=staging_table(self.spared))
        return self.render("missing", unspared=unspared)

    def sample(self, kind: str | None, number: int) -> sql.Composed:
        """Shows some changes of a kind, as text; None: rows that don't change.

        The number is no parameter: with one, a percent sign in a column's name would be taken for another.
        """
        limit = sql.Literal(number)
        names = sql.SQL("ARRAY[{}]").format(_COMMA.join(sql.Literal(name) for name in self.columns))
        old_row = _texts("t", self.columns)
        if kind is None:
            return self.render("equal", names=names, old_row=old_row, limit=limit)
        new_row: sql.Composable = sql.SQL("json_object({}, ARRAY[{}])").format(names, _texts("s", self.columns))
        new_row = sql.SQL("NULL") if kind == "d" else new_row
        return self.render(
            "sample", names=names, old_row=old_row, new_row=new_row, chosen=self._those(kind), limit=limit
        )

    def breaking(self, broken: sql.Composable) -> sql.Composed:
        """Finds the key of a row for which this is true."""
        return self.render("breaking", texts=_texts("s", self.table.key), broken=broken)

    def insert(self, *, empty: bool) -> sql.Composed:
        """Inserts the keys that are not there; ``empty``: the table has no row, so that none has to be looked for."""
        columns = [*self.table.key, *self.data]
        values: list[sql.Composable] = [sql.Identifier("s", name) for name in columns]
        names = [sql.Identifier(name) for name in columns]
        if self.table.active is not None:
            names.append(sql.Identifier(self.table.active))
            values.append(_TRUE)
        locked = _COMMA.join(sql.Identifier("s", name) for name in self.table.key)
        return self.render(
            "insert",
            columns=_COMMA.join(names),
            values=_COMMA.join(values),
            inserts=self._those("i"),
            absent=sql.SQL("") if empty else self.render("absent"),
            sorted=self.render("sorted", locked=locked) if self.table.unique else sql.SQL(""),
        )

    def update(self, *kinds: str) -> sql.Composed | None:
        """Sets what differs of these kinds of changes; None where a row has nothing but its key."""
        if not self.data:
            return None
        return self.render("update", assignments=_assignments(self.data), updates=self._those(*kinds))

    def reactivate(self) -> sql.Composed | None:
        """Makes inactive rows active again; None where rows are not deactivated."""
        if self.table.active is None or self.everything:
            return None
        flag = sql.SQL("{} = true").format(sql.Identifier(self.table.active))
        data = [_assignments(self.data)] if self.data else []
        return self.render(
            "reactivate",
            assignments=_COMMA.join([*data, flag]),
            taken=_COMMA.join(sql.Identifier("s", name) for name in (*self.table.key, *self.data)),
            newest=sql.Identifier(self.table.newest),
        )

    def _parts(self) -> dict[str, sql.Composable]:
        key, active = self.table.key, self.table.active
        flag = sql.Identifier(active or "")
        changes = staging_table(self.staged if self.everything else self.changes)
        return {
            "target": verbatim(self.table.sql),
            "staged": staging_table(self.staged),
            "staged_name": sql.Literal(self.staged),
            "changes": changes,
            "key": _COMMA.join(map(sql.Identifier, key)),
            "keys": _COMMA.join(sql.Identifier("t", name) for name in key),
            "columns": _COMMA.join(map(sql.Identifier, self.columns)),
            "match": sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in key),
            "active": _TRUE if active is None else self._active(active),
            "wanted": sql.SQL("s.{} IS NOT FALSE").format(flag) if active in self.columns else _TRUE,
            "differs": self._differs(),
            "flag": flag,
        }

    def _active(self, flag: str) -> sql.Composable:
        """SQL that is true for active rows: only FALSE deletes. Postgres uses a partial index for IS TRUE alone."""
        test = "{} IS TRUE" if self.table.column(flag).not_null else "{} IS NOT FALSE"
        return sql.SQL(test).format(sql.Identifier("t", flag))

    def _differs(self) -> sql.Composable:
        """SQL that is true where a column of the table, t, differs from the load's, s.

        Values that Postgres calls equal and spells differently are different records: their bytes are compared.
        """
        if not self.data:
            return sql.SQL("false")
        loose = [name for name in self.data if not self.table.column(name).exact]
        parts = [
            sql.SQL("t.{0} IS DISTINCT FROM s.{0}").format(sql.Identifier(name))
            for name in self.data
            if name not in loose
        ]
        if loose:
            rows = [_COMMA.join(sql.Identifier(side, name) for name in loose) for side in ("t", "s")]
            parts.append(sql.SQL("pg_catalog.record_image_ne(ROW({}), ROW({}))").format(*rows))
        return sql.SQL("({})").format(sql.SQL(" OR ").join(parts))

    def _those(self, *kinds: str) -> sql.Composable:
        if self.everything:
            return self._parts()["wanted"]
        return sql.SQL('s.compactory_change = ANY({}::"char"[])').format(sql.Literal(list(kinds)))


def _assignments(names: Sequence[str]) -> sql.Composed:
    return _COMMA.join(sql.SQL("{0} = s.{0}").format(sql.Identifier(name)) for name in names)


def _texts(side: str, names: Sequence[str]) -> sql.Composed:
    return _COMMA.join(sql.SQL("{}::text").format(sql.Identifier(side, name)) for name in names)
