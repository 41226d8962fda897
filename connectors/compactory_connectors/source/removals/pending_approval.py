"""A removal or change that waits for an operator: shown, logged, approved by its id, or released."""

from __future__ import annotations

import structlog

from ..polling.removal import Hold, PollHeld
from ..status.board import StatusBoard
from ..status.orders import Orders

__all__ = ["PendingApproval"]

log = structlog.get_logger("compactory.source")


class PendingApproval:
    """The hold of one table. An approval is valid only for the hold whose id it names."""

    def __init__(self, connector: str, table: str, orders: Orders, board: StatusBoard) -> None:
        self._connector = connector
        self._table = table
        self._orders = orders
        self._board = board
        self._approved_id: str | None = None
        self._detail: str | None = None
        self._holds_poll = False
        self.hold: Hold | None = None
        """What an approval would let pass."""

    @property
    def is_active(self) -> bool:
        return self._detail is not None

    def take_order(self) -> bool:
        """Take an operator's approval; return True if there was one."""
        approved_id = self._orders.take_approval(self._table)
        if approved_id is None:
            return False
        self._approved_id = approved_id
        held_id = self.hold.id if self.hold is not None else "nothing"
        if approved_id != held_id:
            log.warning("approval of something else", table=self._table, approved=approved_id, held=held_id)
        return True

    def allows(self, hold: Hold) -> bool:
        """Return True if this hold was approved."""
        if self._approved_id != hold.id:
            return False
        log.info("approved", table=self._table, id=hold.id, removed=hold.removed, changed=hold.changed)
        return True

    def show(self, hold: Hold, reason: str) -> None:
        approve = f"compactory source approve {self._connector} {self._table} --removal {hold.id}"
        self._show(f"{reason}; if it is meant: {approve} --url http://HOST:PORT", hold)

    def show_doubt(self, detail: str) -> None:
        """Show a hold that no approval ends."""
        self._show(detail, None)

    def demand(self, hold: Hold, reason: str) -> None:
        """Raise PollHeld unless the hold was approved."""
        self._holds_poll = True
        self.take_order()
        if not self.allows(hold):
            self.show(hold, reason)
            raise PollHeld(hold, reason)

    def end_poll(self) -> None:
        """End the hold of a poll that was published to its end."""
        if self._holds_poll:
            self.release()

    def end_sweep(self) -> None:
        """End the hold of a sweep; a poll's hold stays."""
        if not self._holds_poll:
            self.release()

    def release(self) -> None:
        self._approved_id, self._holds_poll = None, False
        if self.is_active:
            self._detail, self.hold = None, None
            self._board.release(self._table)
            log.info("not held any more", table=self._table)

    def _show(self, detail: str, hold: Hold | None) -> None:
        if detail != self._detail:
            log.error("table held", table=self._table, detail=detail)
        self._detail, self.hold = detail, hold
        self._board.hold(self._table, detail, hold)
