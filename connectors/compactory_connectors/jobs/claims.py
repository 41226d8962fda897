"""The jobs that one executor has claimed, and the groups that it claims from next. Talks to no database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from .attempt import Ended
from .attempts import Attempts
from .statements import Assigned, Batch, Chain, Claimed, Outcome, Request
from .status import Board

__all__ = ["Claims", "Ends"]

log = structlog.get_logger("compactory.jobs")

_AHEAD = 0.25  # seconds of work that are claimed before a thread is free
_MOST = 1000  # jobs that are claimed at once
_DEPTH = 20  # jobs of a group that are claimed at once where they are quick
_QUICK = 100.0  # jobs a second that an executor must run for that
_GROUPS = 100  # groups that are claimed from at once: each takes a lock in the server's table of locks


@dataclass(frozen=True, slots=True)
class Ends:
    """Chains whose first jobs have ended. ``back``: outcomes of jobs that are given back.

    ``going_on`` has the rest of a chain by the id of its first job: it begins once the outcomes are committed.
    """

    ending: Sequence[Ended]
    outcomes: list[Outcome]
    back: list[Outcome]
    going_on: dict[int, Chain]


class Claims:
    """Owned by the keeper's thread."""

    def __init__(self, concurrency: int, attempts: Attempts, board: Board) -> None:
        self._concurrency = concurrency
        self._attempts = attempts
        self._board = board
        self.assigned: Assigned | None = None
        """The partitions whose jobs are run here."""
        self.stopping = False
        """Whether nothing more is claimed."""
        self._tokens: dict[int, int] = {}  # of the jobs that are claimed, by id
        self._back: list[Outcome] = []  # to be handed back
        self._groups: dict[str, None] = {}  # to be looked at; in order
        self._freed: set[str] = set()  # in which a job of ours has ended
        self._held: set[str | None] = set()  # groups of which a chain is here: when it ends, they are looked at
        self._voided = False  # claims nothing until its attempts have ended
        self._rate = 0.0  # jobs a second

    @property
    def ids(self) -> list[int]:
        """The jobs that are claimed."""
        return list(self._tokens)

    @property
    def none(self) -> bool:
        """Whether no job is claimed, and none is to be handed back."""
        return not self._tokens and not self._back

    @property
    def handing_back(self) -> bool:
        """Whether the next round has jobs to hand back."""
        return bool(self._back)

    def void(self) -> None:
        """Others have its jobs, or will."""
        self._attempts.take_back(lambda _: True)
        for each in (self._tokens, self._back, self._groups, self._freed, self._held):
            each.clear()
        self._voided = True

    def room(self) -> int:
        """How many more jobs to claim."""
        if self.stopping or self.assigned is None or (self._voided and self._attempts.running()):
            return 0
        self._voided = False
        ahead = self._concurrency + min(_MOST, int(self._rate * _AHEAD))
        room = max(0, ahead - len(self._tokens))
        return 0 if room < ahead // 4 else room

    def spare(self) -> int:
        """How many chains may be begun before the next round: it costs as much for one end as for some dozens."""
        waiting = self._attempts.waiting
        return 0 if waiting < 2 * self._concurrency or self.stopping or self._back else waiting // 2

    def measure(self, jobs: int, seconds: float) -> None:
        """So many jobs ended within so many seconds."""
        self._rate += (jobs / seconds - self._rate) * min(1.0, 5 * seconds)

    def give_back(self, wanted: Callable[[Claimed], bool]) -> None:
        """Give back jobs that no thread has begun."""
        for chain in self._attempts.take_back(wanted):
            self._back += [Outcome.back(job) for job in chain]
            self._held.discard(chain[0].group)

    def ours(self, job: Claimed) -> bool:
        """Whether a job is to run here."""
        return self.assigned is not None and job.place % self.assigned.of in self.assigned.partitions

    def ends(self, ending: Sequence[Ended]) -> Ends:
        """The ends to commit. If the commit fails, the next call has all of them again."""
        outcomes: list[Outcome] = []
        back = self._back.copy()
        going_on: dict[int, Chain] = {}
        for item in ending:
            job, rest = item.chain[0], item.chain[1:]
            if self._tokens.get(job.id) != job.token:
                continue
            if item.outcome is not None and not item.committed:
                outcomes.append(item.outcome)
            if rest and _passes(item.outcome) and self.ours(rest[0]) and not self.stopping:
                going_on[job.id] = rest
            else:
                back += [Outcome.back(left) for left in rest]
                self._free(job)
        return Ends(ending, outcomes + back, back, going_on)

    def settle_ends(self, ends: Ends, ended: frozenset[int]) -> None:
        """Outcomes were committed, of those attempts that were still ours: the chains go on."""
        for outcome in ends.back:
            self._tokens.pop(outcome.id, None)
        self._back = []
        for item in ends.ending:
            self._settle(item, ends.going_on.get(item.chain[0].id, []), ended)

    def request(self) -> Request:
        """The next claim. If it fails, the next call has all of it again."""
        room = self.room()
        names = list(self._groups)[: min(room, _GROUPS)]
        depth = max(1, min(_DEPTH, room // 2 // len(names))) if names and self._rate > _QUICK else 1
        limit = max(1, room - len(names) * depth) if room else 0
        freed = list(self._freed.intersection(names))
        return Request(limit=limit, groups=names, freed=freed, depth=depth)

    def settle(self, request: Request, batch: Batch) -> None:
        """Jobs were claimed."""
        for name in request.groups:
            del self._groups[name]
            self._freed.discard(name)
        self._groups.update(dict.fromkeys(name for name in (*batch.found, *batch.refused) if name not in self._held))
        self._freed.update(batch.refused.intersection(request.freed))
        for chain in batch.chains:
            for job in chain:
                self._tokens[job.id] = job.token
            self._held.add(chain[0].group)
            self._attempts.put(chain)

    def _settle(self, item: Ended, rest: Chain, ended: frozenset[int]) -> None:
        """The first job of a chain is through: go on with the rest of it."""
        job, outcome = item.chain[0], item.outcome
        if self._tokens.get(job.id) != job.token:
            self._board.count("lost")
            return
        del self._tokens[job.id]
        if outcome is None or not (item.committed or job.id in ended):
            self._board.count("lost")
            log.warning("an attempt ended after its job was taken over", job=job.id, type=job.type)
            self._back += [Outcome.back(left) for left in rest]
            self._free(job)
            return
        self._board.ended(job.type, _word(outcome), item.seconds)
        if rest:
            self._attempts.put(rest)

    def _free(self, job: Claimed) -> None:
        """Nothing of the job's group runs here any more."""
        if job.group is not None:
            self._held.discard(job.group)
            self._groups[job.group] = None
            self._freed.add(job.group)


def _passes(outcome: Outcome | None) -> bool:
    """Whether later jobs of the group may run."""
    return outcome is not None and (outcome.state in {"succeeded", "cancelled"} or not outcome.holds)


def _word(outcome: Outcome) -> str:
    """The outcome of an attempt, as the label of a metric."""
    if outcome.state != "scheduled":
        return outcome.state
    return "handed back" if outcome.refund else "retried"
