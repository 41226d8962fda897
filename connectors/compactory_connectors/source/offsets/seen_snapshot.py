"""The part of a table that a poll has seen: pure data, no I/O.

``updated_date`` is a transaction's start and ids are given before the commit, so neither tells which rows became
visible since the last poll. A *seen snapshot* does: the ``pg_snapshot`` of that poll and, for a table without
``updated_xid``, the transaction ids of row versions that were already visible above the snapshot's floor.

Source: PostgreSQL documentation, 9.27 "Transaction ID and Snapshot Information Functions".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compactory_connectors.postgres.snapshot import Snapshot

__all__ = ["SeenSnapshot"]


@dataclass(frozen=True, slots=True)
class SeenSnapshot:
    """All row versions that a poll has seen of one table.

    ``seen`` is None for a table with ``updated_xid`` (always the top-level transaction's id: the snapshot is the whole
    state). Otherwise it holds the 64-bit ids, at or above ``snapshot.xmin``, of row versions that were visible: a row's
    ``xmin`` may be a savepoint's id, which the snapshot does not list.
    """

    snapshot: Snapshot
    seen: frozenset[int] | None = None

    @classmethod
    def read(cls, value: dict[str, Any]) -> SeenSnapshot | None:
        """Read what an offset has of it; None where there is no snapshot.

        Raises TypeError or ValueError for something else.
        """
        if value.get("snapshot") is None:
            return None
        return cls(Snapshot.parse(value["snapshot"]), frozenset(map(int, value["seen"])) if "seen" in value else None)
