"""A removal that waits for an operator: shown, logged, approved by its id, or let go."""

from __future__ import annotations

import structlog

from ..polling.removal import HeldRemoval, RemovalHeld
from ..status.board import StatusBoard
from ..status.orders import Orders

__all__ = ["PendingApproval"]

log = structlog.get_logger("compactory.source")


class PendingApproval:
    """The hold of one table. Only the removal that an operator saw by its id is ever let pass."""

    def __init__(self, connector: str, table: str, orders: Orders, board: StatusBoard) -> None:
        self._connector = connector
        self._table = table
        self._orders = orders
        self._board = board
        self._approved: str | None = None
        self._detail: str | None = None
        self.removal: HeldRemoval | None = None
        """The held removal, where an approval would let it pass."""

    @property
    def active(self) -> bool:
        """Whether something is held."""
        return self._detail is not None

    def hear(self) -> bool:
        """Take an approval that came meanwhile; whether one did."""
        approved = self._orders.take_approval(self._table)
        if approved is None:
            return False
        self._approved = approved
        if self.removal is None or approved != self.removal.id:
            held = self.removal.id if self.removal is not None else "nothing"
            log.warning("approval of something else", table=self._table, approved=approved, held=held)
        return True

    def allows(self, removal: HeldRemoval) -> bool:
        """Whether this very removal was approved."""
        if self._approved != removal.id:
            return False
        log.info("removal approved", table=self._table, removal=removal.id, removed=removal.removed)
        return True

    def keep(self, removal: HeldRemoval, why: str) -> None:
        """Hold a removal until it is approved."""
        approve = f"compactory source approve {self._connector} {self._table} --removal {removal.id}"
        self._show(f"{why}; if it is meant: {approve} --url http://HOST:PORT", removal)

    def doubt(self, detail: str) -> None:
        """Hold what no approval can let pass."""
        self._show(detail, None)

    def refuse(self, removal: HeldRemoval, why: str) -> None:
        """Raise RemovalHeld unless this was approved."""
        self.hear()
        if not self.allows(removal):
            self.keep(removal, why)
            raise RemovalHeld(removal, why)

    def release(self) -> None:
        """Nothing is held any more."""
        self._approved = None
        if self.active:
            self._detail, self.removal = None, None
            self._board.release(self._table)
            log.info("removal not held any more", table=self._table)

    def _show(self, detail: str, removal: HeldRemoval | None) -> None:
        if detail != self._detail:
            log.error("removal held", table=self._table, detail=detail)
        self._detail, self.removal = detail, removal
        self._board.hold(self._table, detail, removal)
