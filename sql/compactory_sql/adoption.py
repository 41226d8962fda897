"""Options of an adoption. The triggers keep it as their argument, so the catalogue has it later."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

__all__ = ["XID_COLUMN", "Adoption"]

#: The only column that adoption adds: the top-level transaction that wrote the row version.
XID_COLUMN = "updated_xid"


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """The options of `compactory sql adopt` for one table.

    ``table``: name, optionally with schema. A name that contains a dot is in double quotes, as in SQL.
    ``key``: columns of the record key. No update may change them, nor ``id``.
    ``active``: boolean column; a row is active unless it is false. None: all rows are active and may be deleted.
    ``allow_deletes``: active rows may be deleted too.
    ``timestamp``: column that every update sets to the current time, in UTC. ``id``: the incrementing column.
    ``notify``: statements wake a sleeping source by NOTIFY. Such a transaction can't be prepared (two-phase commit).
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
        """Return the columns that no update may change."""
        return tuple(dict.fromkeys((*self.key, self.id)))

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns that the options name, each once."""
        active = () if self.active is None else (self.active,)
        return tuple(dict.fromkeys((*self.key, self.id, self.timestamp, *active)))

    @property
    def refused_changes(self) -> tuple[str, ...]:
        """Describe, in words, the changes of rows that Postgres refuses once the table is adopted."""
        immutable, key = " or ".join(self.immutable), ", ".join(self.key)
        row = f"active row, where {self.active} is not false," if self.active else "row"
        deletes = (
            ()
            if self.active is None or self.allow_deletes
            else (f"a DELETE or TRUNCATE of active rows, where {self.active} is not false (--allow-deletes allows it)",)
        )
        return (
            f"an UPDATE that changes {immutable} (--key, --id)",
            f"a second {row} with the same {key}",
            *deletes,
        )

    def settings(self) -> str:
        """Return the argument of the triggers, as JSON.

        The field with the active column is named ``active``: the triggers refuse to delete active rows. With
        ``allow_deletes`` it is named ``deletable``: they refuse none.
        """
        active_field = "deletable" if self.allow_deletes else "active"
        fields = {
            "key": list(self.key),
            active_field: self.active,
            "timestamp": self.timestamp,
            "id": self.id,
            "notify": self.notify,
        }
        return json.dumps(fields, ensure_ascii=False, separators=(", ", ": "))

    def command(self) -> str:
        """Return the command line that adopts the table with these options."""
        words = ["compactory", "sql", "adopt", self.table, "--key", ",".join(self.key)]
        words += ["--active", self.active] if self.active is not None else []
        words += ["--allow-deletes"] if self.allow_deletes else []
        words += ["--timestamp", self.timestamp] if self.timestamp != "updated_date" else []
        words += ["--id", self.id] if self.id != "id" else []
        words += [] if self.notify else ["--no-notify"]
        return shlex.join(words)

    @classmethod
    def from_settings(cls, table: str, settings: str) -> Adoption:
        """Return the adoption that a trigger's argument describes. Raises ValueError if it describes none."""
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
