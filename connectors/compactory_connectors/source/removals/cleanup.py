"""Removes keys from a table's topic, or holds a removal for an operator (guarantees 10 and 13).

A poll that would remove suspiciously many keys publishes everything else and leaves its tombstones to a sweep. The
sweep compares table and topic: it counts, removes, or holds. The offset says that a sweep is due, so that a hold
survives a restart. Each sweep compares again, so that a hold ends by itself once the rows are back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import structlog

from compactory_connectors.connect.record.record import RowError
from compactory_connectors.kafka.producer_record import Copy

from ..polling.living_rows import LivingRows
from ..polling.reader import Reader, RecordBatch, pages
from ..polling.removal import Hold, hold_id, keys_needed, too_many
from .pending_approval import PendingApproval
from .sweeper import Sweeper, SweepResult

__all__ = ["TopicCleanup"]

log = structlog.get_logger("compactory.source")

_SWEEP_AGAIN = 10.0  # seconds between two sweeps while a removal is held
_READ_AGAIN = 300.0  # the same if every sweep reads topic and table whole
_PARTITIONS_KNOWN = 10.0  # seconds within which readers have found a topic's new partitions
_FIRST_SWEEP = 0.1  # of the interval: when the first sweep after a start is due


class _PollRemovals(Enum):
    """The treatment of the running poll's tombstones."""

    CHECKED = auto()  # each batch is checked
    LEFT_TO_SWEEP = auto()
    APPROVED = auto()


@dataclass(slots=True, kw_only=True)
class TopicCleanup:
    """Checks the removals of a table's polls, and sweeps its topic. Owned by the session's thread.

    ``percent`` of the keys may be removed at once, ``page_rows`` in one Kafka transaction. ``interval``: seconds
    between two sweeps, 0 for only those that are needed. ``catch_up`` polls the table and returns True if it came to
    its end, ``send`` publishes the tombstones of copies with an offset.
    """

    reader: Reader
    rows: LivingRows
    sweeper: Sweeper
    approval: PendingApproval
    percent: int
    page_rows: int
    interval: float
    other_tables: list[str]
    """Other tables that are published to the topic."""
    catch_up: Callable[[], bool]
    send: Callable[[Sequence[Copy], RecordBatch], None]
    _steps: Generator[int | None] | None = None
    _poll_removals: _PollRemovals = _PollRemovals.CHECKED
    _needs_next_sweep: bool = False  # removals were left since the sweep began
    _due: float = field(default=float("inf"))
    _not_before: float = 0.0
    _opened: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.interval and self.reader.plan.sweeps:
            self._due = time.monotonic() + self.interval * _FIRST_SWEEP

    @property
    def can_sweep(self) -> bool:
        """True if the topic may have no other keys than the table's. A view may lack rows that were sent."""
        return self.reader.plan.sweeps or self.reader.plan.sweeps_always

    @property
    def wake_at(self) -> float:
        """The time of the next step, by the monotonic clock."""
        if self._steps is not None:
            return 0.0
        if not self.can_sweep:
            return float("inf")
        return min(self._due, self._not_before) if self.is_pending else self._due

    @property
    def is_pending(self) -> bool:
        """Return True if a sweep runs, or is needed and not held."""
        offset = self.reader.offset
        is_needed = offset.sweep and offset.seen_snapshot is not None and not self.approval.is_active
        return self._steps is not None or (is_needed and self.can_sweep)

    def begin_poll(self) -> None:
        self._poll_removals = _PollRemovals.CHECKED
        if self.approval.take_order():
            self._due = 0.0

    def check(self, batch: RecordBatch) -> RecordBatch:
        """Return a batch as it may be published: without its tombstones if the poll has suspiciously many.

        Raises PollHeld if a sweep can't do the poll's removals.
        """
        if self._poll_removals is _PollRemovals.APPROVED:
            return batch
        if self._poll_removals is _PollRemovals.CHECKED:
            values = [removal.key for removal in batch.removals if removal.value is not None]
            tombstones = [record[0] for record in batch.records if record[1] is None]
            if not values and not tombstones:
                return batch
            removed = len(values) + len(tombstones) + self.reader.removals_left()
            if not self._is_suspicious(removed):
                return batch
            if values or not self.reader.plan.sweeps:
                self._demand_approval(removed, [key for key in (*values, *tombstones) if key is not None])
                return batch
            self._poll_removals = _PollRemovals.LEFT_TO_SWEEP
            log.warning("removals of a poll are left to a sweep", table=self._name, removed=removed)
        return self.leave_to_sweep(batch)

    def leave_to_sweep(self, batch: RecordBatch) -> RecordBatch:
        """Return a batch without its tombstones, which a sweep will send."""
        self._needs_next_sweep, self._due = True, 0.0
        puts = [record for record in batch.records if record[1] is not None]
        return replace(batch, records=puts, removals=(), offset=replace(batch.offset, sweep=True), persist=True)

    def end_poll(self) -> None:
        if self.reader.plan.sweeps_always:
            self._due = 0.0
        self.approval.end_poll()

    def step(self) -> int:
        """Do the next step of a sweep that is due; return the number of tombstones sent. Raises as `Sweeper` does."""
        if self._steps is None:
            if time.monotonic() < self.wake_at:
                return 0
            self._steps = self._sweep()
        try:
            return next(self._steps) or 0
        except StopIteration:
            self._steps = None
        except BaseException:
            self._steps = None
            self.sweeper.forget()  # a sweep of changed ranges would not find these keys again
            raise
        return 0

    def close(self) -> None:
        """Stop sweeping, and forget the ranges of keys."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        self.sweeper.forget()

    @property
    def _name(self) -> str:
        return self.reader.plan.qualified

    def _sweep(self) -> Generator[int | None]:
        self._due = time.monotonic() + self.interval if self.interval else float("inf")
        self._needs_next_sweep, partitions = False, self.reader.offset.partitions
        steps = self.sweeper.run()
        try:
            yield from self._finish((yield from steps), partitions)
        except RowError as error:
            self._show_doubt(f"the key of a row is not known, and may be one that the table seems to lack: {error}")
        finally:
            steps.close()

    def _finish(self, result: SweepResult, partitions: tuple[int, ...]) -> Iterator[int]:
        """Remove the keys of a sweep that began when the table had these partitions."""
        if result.vanished and not self.reader.plan.sweeps_always and not self._caught_up():
            self.sweeper.forget()
            return
        result = replace(result, vanished=tuple(self.sweeper.unpublished(result.vanished)))
        if self._is_held(result):
            return
        yield from self._remove(result)
        offset = self.reader.offset
        if offset.sweep and not self._needs_next_sweep and offset.partitions == partitions:
            self.send((), RecordBatch([], replace(offset, sweep=False)))

    def _caught_up(self) -> bool:
        self._poll_removals = _PollRemovals.CHECKED
        return self.catch_up()

    def _is_held(self, result: SweepResult) -> bool:
        """Return True if vanished keys must stay in the topic for now, after showing why."""
        keys = {copy.key for copy in result.vanished}
        missing = f"{len(keys)} of {result.keys} keys of topic {self.reader.plan.topic!r} are not in table {self._name}"
        if keys and self.other_tables:
            self._show_doubt(
                f"{missing} and may be of {', '.join(self.other_tables)}, which was published there too; give each"
                " table a topic of its own, or if that has ended, forget its offset: compactory source offsets reset"
            )
            return True
        if not too_many(len(keys), result.keys, self.percent):
            return False
        former = self.approval.hold if result.was_remembered else None
        hold = Hold(id=former.id if former else hold_id(keys), removed=len(keys), keys=result.keys)
        if self.approval.allows(hold):
            return False
        self.sweeper.remember(result.vanished)
        self.approval.show(hold, f"{missing}, {hold.percent} %; {self._limit()}; lookups still find them")
        self._sweep_again()
        return True

    def _remove(self, result: SweepResult) -> Iterator[int]:
        misplaced = self._removable(result.misplaced)
        for copies in pages(misplaced, self.page_rows):
            self._send(copies)
            yield len(copies)
        for copies in pages(result.vanished, self.page_rows):
            unpublished = self.sweeper.unpublished(copies)
            self._send(unpublished)
            yield len(unpublished)
        self.approval.end_sweep()
        if not self.interval or len(misplaced) < len(result.misplaced):
            self.sweeper.forget()  # a sweep of changed ranges would not find the misplaced copies again
        if result.vanished or misplaced:
            removed = len(result.vanished)
            log.info("keys removed that the table lacks", table=self._name, removed=removed, misplaced=len(misplaced))

    def _removable(self, misplaced: Sequence[Copy]) -> Sequence[Copy]:
        """Return the misplaced copies once readers know the partitions where their keys live; until then none.

        A reader that does not know the partition would lose the key for a while.
        """
        known_at = self._opened + _PARTITIONS_KNOWN
        if not misplaced or time.monotonic() >= known_at:
            return misplaced
        self._needs_next_sweep, self._not_before = True, known_at
        return ()

    def _send(self, copies: Sequence[Copy]) -> None:
        if copies:
            self.send(copies, RecordBatch([], self.reader.offset))

    def _is_suspicious(self, removed: int) -> bool:
        needed = keys_needed(removed, self.percent) - removed
        return needed > 0 and self.rows.count(needed) < needed

    def _demand_approval(self, removed: int, keys: list[bytes]) -> None:
        """Raise PollHeld unless the poll's removals were approved."""
        remaining = self.rows.count(keys_needed(removed, self.percent) - removed)
        hold = Hold(id=hold_id(keys), removed=removed, keys=removed + remaining)
        removal = f"a poll would remove {removed} of {hold.keys} keys of topic {self.reader.plan.topic!r}"
        self.approval.demand(hold, f"{removal}, {hold.percent} %; {self._limit()}; the table waits as a whole")
        self._poll_removals = _PollRemovals.APPROVED

    def _limit(self) -> str:
        return f"compactory.max.removed.percent is {self.percent}"

    def _show_doubt(self, detail: str) -> None:
        self.approval.show_doubt(detail)
        self._sweep_again()

    def _sweep_again(self) -> None:
        self._due = time.monotonic() + (_SWEEP_AGAIN if self.sweeper.has_ranges else _READ_AGAIN)
