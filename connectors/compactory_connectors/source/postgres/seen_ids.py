"""Which transactions' row versions a snapshot showed, where 32-bit ids may be those of an epoch ago.

A row that was frozen 2³² transactions ago still shows its ``xmin``. A transaction that runs under the same 32 bits now
was not seen, nor were its savepoints, whose ids no snapshot lists.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from compactory_connectors.postgres.snapshot import Snapshot

from .server import Server, statement

__all__ = ["recent", "seen_ids"]

_EPOCH = 1 << 32


def recent(xids: Iterable[bytes], snapshot: Snapshot) -> set[bytes]:
    """Those of these 32-bit ids of row versions that the snapshot's floor does not cover: of a large table few are."""
    last = snapshot.xmax - 1
    return {xid for xid in xids if last - (last - int(xid)) % _EPOCH >= snapshot.xmin}


def seen_ids(server: Server, snapshot: Snapshot, xids: Iterable[bytes | str]) -> set[int]:
    """In 64 bits the ids of visible rows that the snapshot's floor does not cover and of which it certainly showed all.

    ``xids`` are the 32 bits that rows show. One that is left out has its rows sent once more. Raises psycopg.Error.
    """
    last = snapshot.xmax - 1  # an id is older than that by less than 2³²
    wide = {last - (last - xid) % _EPOCH for xid in map(int, xids)}
    young = {xid for xid in wide if xid >= snapshot.xmin and xid not in snapshot.xip}
    if snapshot.xmax < _EPOCH or not snapshot.xip or not young:
        return young
    ended = _with_status(server, young, running=False)
    # A savepoint's id may have ended since the snapshot, but then its transaction has too, which is asked for later.
    oldest = min(({*snapshot.xip} - _with_status(server, snapshot.xip, running=True)), default=snapshot.xmax)
    return {xid for xid in ended if xid < oldest}


def _with_status(server: Server, xids: Iterable[int], *, running: bool) -> set[int]:
    texts = sql.Literal([str(xid) for xid in xids])
    query = statement("source/running_ids" if running else "source/ended_ids", xids=texts)
    return {int(xid) for xid in server.column(query)}
