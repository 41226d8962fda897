"""Shows a source to probes, status pages and metrics, and hands operators' orders to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from compactory.errors import OrderRefused
from compactory.worker import Metric, Order, Verb
from compactory_connectors.figures import metrics_of

from ..offsets.stored_offsets import Target
from ..polling.removal import Hold
from ..status.status import SOURCE_FIGURES, TABLE_FIGURES, Moment, SourceState, SourceStatus, TableStatus
from .source import Source

__all__ = ["SourceWorker", "source_metrics"]

_PREFIX = "compactory_source"
_MOST_VALUE_BYTES = 2000  # of a value in the sample of a hold


class SourceWorker:
    """Implements `compactory.worker.Operated`. Thread-safe. ``is_alive`` tells if the source's thread still runs."""

    def __init__(self, source: Source, is_alive: Callable[[], bool]) -> None:
        self._source = source
        self._is_alive = is_alive
        self._began = time.time()
        self._is_ready = False

    @property
    def name(self) -> str:
        return f"source {self.connector}"

    @property
    def connector(self) -> str:
        return self._source.status().connector

    def tables(self) -> list[str]:
        return [table.table for table in self._source.status().tables]

    def live(self) -> bool:
        """Return True while the source's thread runs or is yet to be started, also during outages."""
        return self._is_alive() or self._source.status().state is SourceState.STARTING

    def ready(self) -> bool:
        """Return True once every table was published to its end, another process publishes, or it was paused."""
        status = self._source.status()
        is_current = bool(status.tables) and all(table.current_at is not None for table in status.tables)
        self._is_ready = self._is_ready or is_current or status.state in {SourceState.STANDBY, SourceState.PAUSED}
        return self._is_ready

    def blocking(self) -> list[dict[str, Any]]:
        """Return the tables that were never published to their end, or why there is no session yet."""
        status = self._source.status()
        connector = {"connector": status.connector, "state": status.state.value, "detail": status.detail}
        unfinished = [table.table for table in status.tables if table.current_at is None]
        return [{**connector, "table": table} for table in unfinished] or ([] if status.tables else [connector])

    def status(self) -> dict[str, Any]:
        """Return the connector's state and that of its tables, without values of rows."""
        return self._document(with_values=False)

    def admin_status(self) -> dict[str, Any]:
        """Return :meth:`status` with the values of held changes."""
        return self._document(with_values=True)

    def _document(self, *, with_values: bool) -> dict[str, Any]:
        moment = self._moment()
        status, document = moment.status, asdict(moment.status)
        del document["target_state"], document["target_state_stored"]
        if status.open_transaction is not None:
            document["open_transaction"]["text"] = str(status.open_transaction)
        return document | {
            "state": status.state.value,
            "target": status.target_state.target.value,
            "target_since": status.target_state.since,
            "target_stored": status.target_state_stored,
            "tables": [_table_document(table, moment, with_values) for table in status.tables],
        }

    def metrics(self) -> Iterable[Metric]:
        return source_metrics(self._moment())

    def run_command(self, order: Order) -> None:
        """Note an order.

        Raises OrderRefused if another process publishes, if this one has ended, and for the approval of something else
        than what is held.
        """
        status, orders = self._source.status(), self._source.orders
        if status.state is SourceState.STANDBY:
            raise OrderRefused(f"this is a standby of {self.connector!r}; give the order to the process that publishes")
        if not self.live() or status.state is SourceState.STOPPED:
            raise OrderRefused(f"the source of {self.connector!r} has ended: {status.detail}")
        match order:
            case Order(verb=Verb.PAUSE):
                orders.set_target(Target.PAUSED)
            case Order(verb=Verb.RESUME):
                orders.set_target(Target.RUNNING)
            case Order(verb=Verb.RESTART):
                orders.restart(order.table)
            case Order(table=None):
                raise OrderRefused(f"{order.verb.value} is about one table")
            case Order(verb=Verb.APPROVE, table=str() as table, removal=str() as removal):
                _refuse_other_removal(status, table, removal)
                orders.approve(table, removal)
            case Order(table=str() as table):
                orders.resend(table, order.keys)

    def _moment(self) -> Moment:
        return Moment(self._source.status(), time.time(), self._began)


def _refuse_other_removal(status: SourceStatus, table: str, removal: str) -> None:
    """Raise OrderRefused unless the table holds this removal."""
    held = [row.removal.id for row in status.tables if row.table == table and row.removal is not None]
    if removal not in held:
        present = f"removal {held[0]} is" if held else "nothing is"
        raise OrderRefused(f"{table} does not hold removal {removal}; {present} held now")


def _table_document(table: TableStatus, moment: Moment, with_values: bool) -> dict[str, Any]:
    document = asdict(table)
    lag = moment.lag(document.pop("current_at"))
    return document | {
        "state": moment.status.shown(table.state).value,
        "removal": _hold_document(table.removal, with_values) if table.removal is not None else None,
        "load": table.load.fields() if table.load is not None else None,
        "lag_seconds": round(lag, 3) if lag is not None else None,
    }


def _hold_document(hold: Hold, with_values: bool) -> dict[str, Any]:
    sample = []
    for change in hold.sample:
        values = {"old": _text(change.old), "new": _text(change.new)} if with_values else {}
        sample.append({"key": _text(change.key)} | values)
    return asdict(hold) | {"sample": sample}


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw[:_MOST_VALUE_BYTES].decode(errors="replace")


def source_metrics(moment: Moment) -> Iterator[Metric]:
    """Yield every metric of one connector."""
    status = moment.status
    yield from metrics_of(_PREFIX, SOURCE_FIGURES, ("connector",), {(status.connector,): status}, moment)
    tables: dict[tuple[str, ...], Any] = {(status.connector, table.table): table for table in status.tables}
    yield from metrics_of(_PREFIX, TABLE_FIGURES, ("connector", "table"), tables, moment)
