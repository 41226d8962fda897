"""Removes keys from a table's topic, or has a removal wait for an operator (guarantees 10 and 13).

A poll that would remove suspiciously much publishes everything else and leaves its tombstones to a sweep, which knows
what the topic has: it counts, removes, or holds. The offset says that a sweep is due, so that a hold outlives the
process; each sweep looks again, so that a hold ends by itself when the rows come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

import structlog
from psycopg import sql

from compactory_connectors.connect.record.record import RowError
from compactory_connectors.kafka.producer_record import Copy

from ..polling.conditions import Conditions
from ..polling.reader import Reader
from ..polling.record_batch import RecordBatch, pages
from ..polling.removal import HeldRemoval, enough_left, removal_id, too_many
from ..postgres.server import Server, statement
from .pending_approval import PendingApproval
from .sweeper import Found, Sweeper

__all__ = ["TopicCleanup"]

log = structlog.get_logger("compactory.source")

_LOOK_AGAIN = 10.0  # seconds between two looks at what is held
_LOOK_DEARLY = 300.0  # the same where every look reads topic and table whole
_READERS = 10.0  # seconds within which readers have found a topic's new partitions, with room to spare
_SOON = 0.1  # of the interval: when the first sweep after a start is due


@dataclass(slots=True, kw_only=True)
class TopicCleanup:
    """Checks the removals of a table's polls, and sweeps its topic. Owned by the session's thread.

    ``percent`` of the keys may be removed at once, ``page_rows`` in one Kafka transaction. ``interval``: seconds
    between two sweeps, 0 for none but those that are needed. ``catch_up`` polls the table and says whether it came to
    its end, ``send`` publishes the tombstones of copies with an offset.
    """

    reader: Reader
    server: Server
    sweeper: Sweeper
    approval: PendingApproval
    percent: int
    page_rows: int
    interval: float
    others: list[str]
    """Other tables that are published to the topic."""
    catch_up: Callable[[], bool]
    send: Callable[[Sequence[Copy], RecordBatch], None]
    _running: Generator[int | None] | None = None
    _leaving: bool = False  # this poll's tombstones
    _passing: bool = False  # all of this poll: it was approved
    _refused: bool = False  # a poll
    _left: bool = False  # of polls since the sweep began
    _due: float = field(default=float("inf"))
    _not_before: float = 0.0
    _opened: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.interval and self.reader.plan.sweeps:
            self._due = time.monotonic() + self.interval * _SOON

    @property
    def sweepable(self) -> bool:
        """True if the table's keys are all that may be in the topic. A view may lack rows that were sent."""
        return self.reader.plan.sweeps or self.reader.plan.sweeps_always

    @property
    def wake_at(self) -> float:
        """When there is something to do, by the monotonic clock."""
        if self._running is not None:
            return 0.0
        if not self.sweepable:
            return float("inf")
        return min(self._due, self._not_before) if self.pending else self._due

    @property
    def pending(self) -> bool:
        """Whether a sweep goes on, or is needed and not held."""
        offset = self.reader.offset
        wanted = offset.sweep and offset.seen_snapshot is not None and not self.approval.active
        return self._running is not None or (wanted and self.sweepable)

    def begin(self) -> None:
        """A poll begins."""
        self._leaving = self._passing = False
        if self.approval.hear():
            self._due = 0.0

    def check(self, batch: RecordBatch) -> RecordBatch:
        """A batch as it may be published: without its tombstones where the poll has suspiciously many.

        Raises RemovalHeld where the poll can't be divided.
        """
        if self._passing:
            return batch
        if not self._leaving:
            values = [each.key for each in batch.removals if each.value is not None]
            gone = values + [record[0] for record in batch.records if record[1] is None]
            if not gone or not self._suspicious(removed := len(gone) + self.reader.removals_left()):
                return batch
            if values or not self.reader.plan.sweeps:
                self._refuse(removed, [key for key in gone if key is not None])
                return batch
            self._leaving = True
            log.warning("removals of a poll are left to a sweep", table=self._name, removed=removed)
        return self.leave_to_sweep(batch)

    def leave_to_sweep(self, batch: RecordBatch) -> RecordBatch:
        """A batch without its tombstones, which a sweep is to send."""
        self._left, self._due = True, 0.0
        puts = [record for record in batch.records if record[1] is not None]
        return replace(batch, records=puts, removals=(), offset=replace(batch.offset, sweep=True), persist=True)

    def ended(self) -> None:
        """A poll was published to its end."""
        plan = self.reader.plan
        if plan.sweeps_always:
            self._due = 0.0
        if self._refused:
            self._refused = False
            self.approval.release()

    def tend(self) -> int:
        """Go a step further with what is due; how many tombstones that sent. Raises what sweeping raises."""
        if self._running is None:
            if time.monotonic() < self.wake_at:
                return 0
            self._running = self._sweep()
        try:
            return next(self._running) or 0
        except StopIteration:
            self._running = None
        except BaseException:
            self._running = None
            self.sweeper.forget()  # nothing else would find again what was found, and not removed
            raise
        return 0

    def close(self) -> None:
        """Stop sweeping, and forget what is known."""
        if self._running is not None:
            self._running.close()
            self._running = None
        self.sweeper.forget()

    @property
    def _name(self) -> str:
        return self.reader.plan.qualified

    def _sweep(self) -> Generator[int | None]:
        self._due = time.monotonic() + self.interval if self.interval else float("inf")
        self._left, partitions = False, self.reader.offset.partitions
        steps = self.sweeper.run()
        try:
            yield from self._end((yield from steps), partitions)
        except RowError as error:
            self._doubt(f"the key of a row is not known, and may be one that the table seems to lack: {error}")
        finally:
            steps.close()

    def _end(self, found: Found, partitions: tuple[int, ...]) -> Iterator[int]:
        """Remove what a sweep has found, which began when the table had these partitions."""
        if found.vanished and not self.reader.plan.sweeps_always and not self._caught_up():
            self.sweeper.forget()
            return
        found = replace(found, vanished=tuple(self.sweeper.untouched(found.vanished)))
        if self._stays(found):
            return
        yield from self._remove(found)
        if self.reader.offset.sweep and not self._left and self.reader.offset.partitions == partitions:
            self.send((), RecordBatch([], replace(self.reader.offset, sweep=False)))

    def _caught_up(self) -> bool:
        self._leaving = self._passing = False  # it is a poll of its own
        return self.catch_up()

    def _stays(self, found: Found) -> bool:
        """Whether what has vanished must stay in the topic for now; shown if it must."""
        keys = {copy.key for copy in found.vanished}
        missing = f"{len(keys)} of {found.keys} keys of topic {self.reader.plan.topic!r} are not in table {self._name}"
        if keys and self.others:
            self._doubt(
                f"{missing} and may be of {', '.join(self.others)}, which was published there too; give each table a"
                " topic of its own, or if that has ended, forget its offset: compactory source offsets reset"
            )
            return True
        if not too_many(len(keys), found.keys, self.percent):
            return False
        known = self.approval.removal if found.known else None
        removal = HeldRemoval(id=known.id if known else removal_id(keys), removed=len(keys), keys=found.keys)
        if self.approval.allows(removal):
            return False
        self.sweeper.remember(found.vanished)
        self.approval.keep(removal, f"{missing}, {removal.percent} %; {self._limit()}; lookups go on with them")
        self._look_again()
        return True

    def _remove(self, found: Found) -> Iterator[int]:
        misplaced = self._ripe(found.misplaced)
        for copies in pages(misplaced, self.page_rows):
            self._send(copies)
            yield len(copies)
        for copies in pages(found.vanished, self.page_rows):
            left = self.sweeper.untouched(copies)
            self._send(left)
            yield len(left)
        self.approval.release()
        if not self.interval or len(misplaced) < len(found.misplaced):
            self.sweeper.forget()  # a sweep that knows the ranges would not find the misplaced copies again
        if found.vanished or misplaced:
            removed = len(found.vanished)
            log.info("keys removed that the table lacks", table=self._name, removed=removed, misplaced=len(misplaced))

    def _ripe(self, misplaced: Sequence[Copy]) -> Sequence[Copy]:
        """The misplaced copies, once readers know of the partitions where their keys live; until then none.

        Of a reader that does not, the key would be gone for a while.
        """
        ripe_at = self._opened + _READERS
        if not misplaced or time.monotonic() >= ripe_at:
            return misplaced
        self._left, self._not_before = True, ripe_at
        return ()

    def _send(self, copies: Sequence[Copy]) -> None:
        if copies:
            self.send(copies, RecordBatch([], self.reader.offset))

    def _suspicious(self, removed: int) -> bool:
        enough = enough_left(removed, self.percent)
        return enough > 0 and self._living_rows(enough) < enough

    def _living_rows(self, limit: int) -> int:
        """How many rows live now, counted up to ``limit``; within a poll, in its snapshot."""
        plan = self.reader.plan
        alive = Conditions(plan).alive()
        parts = {"relation": plan.relation(), "alive": alive, "limit": sql.Literal(limit)}
        return int(self.server.scalar(statement("source/count_living", **parts)))

    def _refuse(self, removed: int, keys: list[bytes]) -> None:
        """Hold a poll that can't be divided, unless it was approved."""
        left = self._living_rows(enough_left(removed, self.percent))
        removal = HeldRemoval(id=removal_id(keys), removed=removed, keys=removed + left)
        what = f"a poll would remove {removed} of {removal.keys} keys of topic {self.reader.plan.topic!r}"
        self._refused = True
        self.approval.refuse(removal, f"{what}, {removal.percent} %; {self._limit()}; the table waits as a whole")
        self._passing = True

    def _limit(self) -> str:
        return f"compactory.max.removed.percent is {self.percent}"

    def _doubt(self, detail: str) -> None:
        self.approval.doubt(detail)
        self._look_again()

    def _look_again(self) -> None:
        self._due = time.monotonic() + (_LOOK_AGAIN if self.sweeper.knows else _LOOK_DEARLY)
