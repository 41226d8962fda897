"""A user's wishes for the adoption of a table. Kept in the triggers' argument: the catalogue tells it later."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

__all__ = ["XID_COLUMN", "Adoption"]

#: The only column that adoption adds: the top-level transaction that wrote the row version.
XID_COLUMN = "updated_xid"


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """How a table is adopted.

    ``table``: its name, optionally with the schema; double quotes as in SQL where a dot is part of a name.
    ``key``: the columns of the record key. Together with ``id`` they become immutable.
    ``active``: the boolean column that says whether a row counts; None: any row may be deleted.
    ``allow_deletes``: active rows may be deleted too.
    ``timestamp``: stamped in UTC at every update. ``id``: the incrementing column.
    ``notify``: wake a sleeping source. A transaction that sent NOTIFY can't be prepared.
    """

    table: str
    key: tuple[str, ...]
    active: str | None = None
    allow_deletes: bool = False
    timestamp: str = "updated_date"
    id: str = "id"
    notify: bool = True

    @property
    def immutable(self) -> tuple[str, ...]:
        """The columns that no update may change."""
        return tuple(dict.fromkeys((*self.key, self.id)))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are named."""
        named = (*self.key, self.id, self.timestamp, *([self.active] if self.active is not None else []))
        return tuple(dict.fromkeys(named))

    @property
    def refused(self) -> tuple[str, ...]:
        """Return the changes of rows that Postgres refuses to the application once the table is adopted, in words."""
        fixed, key = " or ".join(self.immutable), ", ".join(self.key)
        counted = f"active row, where {self.active} is not false," if self.active else "row"
        deletes = (
            ()
            if self.active is None or self.allow_deletes
            else (f"a DELETE or TRUNCATE of active rows, where {self.active} is not false (--allow-deletes allows it)",)
        )
        return (
            f"an UPDATE that changes {fixed} (--key, --id)",
            f"a second {counted} with the same {key}",
            *deletes,
        )

    def settings(self) -> str:
        """Return the triggers' argument. They refuse to delete rows by ``active``, and none by ``deletable``."""
        active = "deletable" if self.allow_deletes else "active"
        fields = {
            "key": list(self.key),
            active: self.active,
            "timestamp": self.timestamp,
            "id": self.id,
            "notify": self.notify,
        }
        return json.dumps(fields, ensure_ascii=False, separators=(", ", ": "))

    def command(self) -> str:
        """The command line that asks for it."""
        words = ["compactory", "sql", "adopt", self.table, "--key", ",".join(self.key)]
        words += ["--active", self.active] if self.active is not None else []
        words += ["--allow-deletes"] if self.allow_deletes else []
        words += ["--timestamp", self.timestamp] if self.timestamp != "updated_date" else []
        words += ["--id", self.id] if self.id != "id" else []
        words += [] if self.notify else ["--no-notify"]
        return shlex.join(words)

    @classmethod
    def from_settings(cls, table: str, settings: str) -> Adoption:
        """Return the adoption that a trigger's argument describes. Raises ValueError when it describes none."""
        fields = json.loads(settings)
        try:
            allow_deletes = "deletable" in fields
            return cls(
                table=table,
                key=tuple(fields["key"]),
                active=fields["deletable" if allow_deletes else "active"],
                allow_deletes=allow_deletes,
                timestamp=fields["timestamp"],
                id=fields["id"],
                notify=fields["notify"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an adoption: {settings}") from error
