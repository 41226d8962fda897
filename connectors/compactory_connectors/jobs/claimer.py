"""Claims jobs for an executor: those without limits in one statement, those of each queue with limits apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from compactory_connectors.postgres.pausing import Pauses
from compactory_connectors.postgres.position import Position

from .attempt import Ended
from .claim_statements import Batch
from .claims import Claims
from .limited_queues import LimitedBatch, LimitedQueue, LimitedQueues, Room
from .limits import Limits
from .rows import Assigned
from .statements import JobTable
from .status import Board

__all__ = ["Claimer"]


@dataclass(slots=True)
class Claimer:
    """Owned by the keeper's thread. Raises psycopg.Error."""

    claims: Claims
    board: Board
    next_due: float | None = None
    """Seconds until the next job without a limit is due."""
    reads_anew: bool = False
    """True until the whole table has been read."""
    _position: Position = field(default_factory=lambda: Position.at(0, 0))
    _queues: LimitedQueues = field(default_factory=LimitedQueues)

    def seconds_until_claim(self) -> float | None:
        """Return the seconds until there is something to claim; None: after a notification."""
        due = [seconds for seconds in (self.next_due, self._queues.seconds_until_claim()) if seconds is not None]
        return min(due, default=None)

    def begin(self, table: JobTable) -> None:
        """Read limits and jobs anew, after a connection was opened."""
        self._queues = LimitedQueues()
        self.read_whole_table(table)
        self.follow_limits(table)

    def read_whole_table(self, table: JobTable) -> None:
        self._position = Position.at(0, table.newest())
        self._queues.read_from(self._position)
        table.claims.read_whole()
        self.reads_anew = True

    def follow_assignment(self, table: JobTable, assigned: Assigned | None) -> bool:
        """Take over the assignment, and return jobs of lost partitions that have not begun. False: it is the same."""
        if assigned == self.claims.assigned:
            return False
        self.claims.assigned = assigned
        self.claims.give_back(lambda job: not self.claims.is_own(job))
        self.read_whole_table(table)
        return True

    def follow_pauses(self, table: JobTable, pauses: Pauses) -> None:
        """Return paused jobs that no thread has started; find those that were resumed."""
        self.claims.paused_types, self.claims.paused_groups = pauses.of("jobs"), pauses.of("job-groups")
        self.claims.give_back(self.claims.is_paused)
        self._obey(table)
        self.board.note(paused=pauses.fields())

    def follow_limits(self, table: JobTable) -> None:
        """Read the limits. If they have changed, count the running jobs that they cover, and claim such jobs apart."""
        limits = table.limits()
        if limits == self._queues.limits.in_force:
            return
        self._queues.limits = Limits(limits)
        table.mark_limited(self._queues.limits)
        self._obey(table)
        self.board.note(limits=[limit.fields() for limit in limits])

    def receive(self, table: JobTable, payloads: Collection[str]) -> None:
        slots = set()
        for payload in payloads:
            word, executor, slot = [*payload.split(" ", 2), "", ""][:3]
            if word == "slot" and executor != str(table.executor):
                slots.add(slot)
        self._queues.wake(slots)
        if "limits" in payloads:
            self.follow_limits(table)

    def add_ends(self, table: JobTable, attempts: Iterable[Ended], *, is_alone: bool) -> None:
        """Make others and then this executor claim jobs under the limits of jobs that have ended."""
        slots = {limit.slot for ended in attempts for limit in self._queues.limits.of_job(ended.chain[0])}
        if slots and not is_alone:
            table.claims.notify_slots(slots)
        if slots:
            self._queues.wake(slots, others_first=not is_alone)

    def claim(self, table: JobTable, ending: int = 0) -> bool:
        """Claim jobs beside ``ending`` jobs that end now. Return True if there is more to claim or something new."""
        request = self.claims.request(ending)
        batch = Batch(position=self._position)
        if request.limit:
            batch = table.claims.claim(request, self.claims.assigned or Assigned((), 1), self._position)
            self._position, self.next_due, self.reads_anew = batch.position, batch.next_due, batch.full
        self.claims.settle(request, batch)
        has_locked_groups = len(batch.refused) < len(request.groups)
        return bool(batch.chains or batch.due_groups or has_locked_groups or batch.full)

    def claim_limited(self, table: JobTable) -> bool:
        """Claim jobs that are under limits, each queue in its own transaction. Return True if there was a job."""
        assigned = self.claims.assigned
        if assigned is None or not self.claims.limited_room():
            return False
        if self._queues.may_search():
            table.claims.search_limited(self._queues, assigned)
        has_claimed = False
        for queue in self._queues_with_room(table):
            if not (count := self.claims.limited_room()):
                break
            batch = table.claims.claim_limited(queue, count, assigned)
            if isinstance(batch, LimitedBatch):
                self.claims.add(batch.chains)
                self._queues.settle(queue, batch)
                has_claimed = has_claimed or bool(batch.chains)
            else:
                queue.wait(batch)
        return has_claimed

    def _queues_with_room(self, table: JobTable) -> list[LimitedQueue]:
        """Return the queues to claim from. One statement asks for the room of several; a claim asks for its own."""
        ready = self._queues.ready()
        if len(ready) < 2:
            return ready
        rooms = table.claims.rooms({limit.slot: limit for queue in ready for limit in queue.limits}.values())
        with_room = []
        for queue in ready:
            room = Room.smallest(rooms[limit.slot] for limit in queue.limits)
            if room.jobs > 0:
                with_room.append(queue)
            else:
                queue.wait(room.next_due)
        return with_room

    def _obey(self, table: JobTable) -> None:
        table.claims.obey(self._queues.limits, self.claims.paused_types, self.claims.paused_groups)
        self.read_whole_table(table)
