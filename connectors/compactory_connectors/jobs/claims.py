"""The jobs that an executor has claimed, and the groups that it claims from next. Talks to no database.

A claimed job goes through these states:

    claimed → running → ended     a thread runs the first job of a chain; its outcome is committed by the next round
    claimed → returned            the executor stops, has lost the job's partition, or an operator has paused the type
                                  or the group: the job is scheduled again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import structlog

from .attempt import Ended
from .attempts import Attempts
from .claim_statements import Batch, Request
from .rows import Assigned, Chain, Claimed, Outcome
from .status import Board

__all__ = ["Claims", "Ends"]

log = structlog.get_logger("compactory.jobs")

_SECONDS_AHEAD = 0.25  # of work that is claimed before a thread is free
_MOST_AHEAD = 1000  # jobs
_GROUP_JOBS = 20  # jobs of a group that are claimed at once, if jobs are quick
_QUICK = 100.0  # jobs a second from which on jobs are quick
_GROUPS = 100  # groups that are claimed from at once: each takes an entry of the server's lock table


@dataclass(frozen=True, slots=True)
class Ends:
    """Ended attempts and what to commit for them.

    ``returned``: outcomes of jobs that are scheduled again. ``following``: the next jobs of a chain by the id of its
    first job; they start once the outcomes are committed. ``free_groups``: groups can be claimed from after the commit.
    """

    attempts: Sequence[Ended]
    outcomes: list[Outcome]
    returned: list[Outcome]
    following: dict[int, Chain]
    free_groups: bool


@dataclass(slots=True)
class Claims:
    """The claimed jobs of an executor. Owned by the keeper's thread."""

    concurrency: int
    attempts: Attempts
    board: Board
    assigned: Assigned | None = None
    """The partitions of this executor; None: unknown."""
    stopping: bool = False
    """True once nothing more is claimed."""
    paused_types: frozenset[str] = frozenset()
    paused_groups: frozenset[str] = frozenset()
    _tokens: dict[int, int] = field(default_factory=dict)  # id of a claimed job → its token
    _returned: list[Outcome] = field(default_factory=list)  # of jobs to be scheduled again
    _groups: dict[str, None] = field(default_factory=dict)  # to claim from next, in this order
    _freed: set[str] = field(default_factory=set)  # groups in which a job of this executor has ended
    _busy_groups: set[str | None] = field(default_factory=set)  # groups with a claimed chain
    _waits_for_attempts: bool = False  # claims nothing until its attempts have ended
    _rate: float = 0.0  # jobs a second

    @property
    def ids(self) -> list[int]:
        return list(self._tokens)

    @property
    def is_empty(self) -> bool:
        return not self._tokens and not self._returned

    @property
    def has_returned(self) -> bool:
        """True if the next round has jobs to return."""
        return bool(self._returned)

    def forget(self) -> None:
        """Forget every claim: other executors have the jobs. Claim nothing until running attempts have ended."""
        self.attempts.take_back(lambda _: True)
        for state in (self._tokens, self._returned, self._groups, self._freed, self._busy_groups):
            state.clear()
        self._waits_for_attempts = True

    def room(self, ending: int = 0) -> int:
        """Return the number of jobs to claim, beside ``ending`` jobs that end now; 0 if it is not worth a claim.

        A claim for few jobs is worth it while threads are idle.
        """
        capacity, claimed = self._capacity(), len(self._tokens) - ending
        has_idle_threads = claimed < min(capacity, self.concurrency)
        return capacity - claimed if has_idle_threads or capacity - claimed >= max(1, capacity // 4) else 0

    def limited_room(self) -> int:
        """Return the number of jobs under limits to claim. They have some room of their own. Few are worth a claim."""
        capacity = self._capacity()
        return max(0, capacity + self.concurrency - len(self._tokens)) if capacity else 0

    def _capacity(self) -> int:
        """Return the largest number of jobs to have claimed."""
        if self.stopping or self.assigned is None or (self._waits_for_attempts and self.attempts.running()):
            return 0
        self._waits_for_attempts = False
        return self.concurrency + min(_MOST_AHEAD, int(self._rate * _SECONDS_AHEAD))

    def spare_chains(self) -> int:
        """Return how many waiting chains may start before the next round: a round is not worth it for one end."""
        waiting = self.attempts.waiting
        return 0 if waiting < 2 * self.concurrency or self.stopping or self._returned else waiting // 2

    def measure(self, jobs: int, seconds: float) -> None:
        """Count jobs that ended within these seconds, for the rate."""
        self._rate += (jobs / seconds - self._rate) * min(1.0, 5 * seconds)

    def give_back(self, is_unwanted: Callable[[Claimed], bool]) -> None:
        """Return unwanted jobs that no thread has started."""
        for chain in self.attempts.take_back(is_unwanted):
            self._returned += [Outcome.back(job) for job in chain]
            self._busy_groups.discard(chain[0].group)

    def is_own(self, job: Claimed) -> bool:
        """Return True if the job belongs to a partition of this executor."""
        return self.assigned is not None and job.place % self.assigned.of in self.assigned.partitions

    def is_paused(self, job: Claimed) -> bool:
        return job.type in self.paused_types or job.group in self.paused_groups

    def ends(self, attempts: Sequence[Ended]) -> Ends:
        """Return what to commit for ended attempts. If the commit fails, call again with the same attempts."""
        outcomes: list[Outcome] = []
        returned = self._returned.copy()
        following: dict[int, Chain] = {}
        for ended in attempts:
            job, next_jobs = ended.chain[0], ended.chain[1:]
            if self._tokens.get(job.id) != job.token:
                continue
            if ended.outcome is not None and not ended.committed:
                outcomes.append(ended.outcome)
            if next_jobs and _lets_group_continue(ended.outcome) and self._may_start(next_jobs[0]):
                following[job.id] = next_jobs
            else:
                returned += [Outcome.back(next_job) for next_job in next_jobs]
                self._free_group(job)
        free_groups = bool(returned) or any(ended.chain[0].group is not None for ended in attempts)
        return Ends(attempts, outcomes + returned, returned, following, free_groups)

    def settle_ends(self, ends: Ends, committed: frozenset[int]) -> None:
        """Record that the outcomes are committed, and continue the chains. ``committed``: ids that were still ours."""
        for outcome in ends.returned:
            self._tokens.pop(outcome.id, None)
        self._returned = []
        for ended in ends.attempts:
            self._settle_end(ended, ends.following.get(ended.chain[0].id, []), committed)

    def request(self, ending: int) -> Request:
        """Return the next claim, see `room`. If the claim fails, the next call returns the same groups."""
        room = self.room(ending)
        claimable = (name for name in self._groups if name not in self.paused_groups)
        names = list(islice(claimable, min(room, _GROUPS)))
        depth = max(1, min(_GROUP_JOBS, room // 2 // len(names))) if names and self._rate > _QUICK else 1
        limit = max(1, room - len(names) * depth) if room else 0
        return Request(limit=limit, groups=names, freed=list(self._freed.intersection(names)), depth=depth)

    def settle(self, request: Request, batch: Batch) -> None:
        """Record claimed jobs, and give them to the threads."""
        for name in request.groups:
            del self._groups[name]
            self._freed.discard(name)
        due = dict.fromkeys(name for name in (*batch.due_groups, *batch.refused) if name not in self._busy_groups)
        self._groups.update(due)
        self._freed.update(batch.refused.intersection(request.freed))
        self.add(batch.chains)

    def add(self, chains: Iterable[Chain]) -> None:
        for chain in chains:
            for job in chain:
                self._tokens[job.id] = job.token
            self._busy_groups.add(chain[0].group)
            self.attempts.put(chain)

    def _may_start(self, job: Claimed) -> bool:
        return self.is_own(job) and not self.stopping and not self.is_paused(job)

    def _settle_end(self, ended: Ended, next_jobs: Chain, committed: frozenset[int]) -> None:
        """Record the end of a chain's first job, and start the next one."""
        job, outcome = ended.chain[0], ended.outcome
        if self._tokens.get(job.id) != job.token:
            self.board.note(lost=self.board.lost + 1)
            return
        del self._tokens[job.id]
        if outcome is None or not (ended.committed or job.id in committed):
            self.board.note(lost=self.board.lost + 1)
            log.warning("an attempt ended after its job was taken over", job=job.id, type=job.type)
            self._returned += [Outcome.back(next_job) for next_job in next_jobs]
            self._free_group(job)
            return
        self.board.ended(job.type, _label(outcome), ended.seconds)
        if next_jobs:
            self.attempts.put(next_jobs)

    def _free_group(self, job: Claimed) -> None:
        """Claim from the job's group again: no job of the group is claimed any more."""
        if job.group is not None:
            self._busy_groups.discard(job.group)
            self._groups[job.group] = None
            self._freed.add(job.group)


def _lets_group_continue(outcome: Outcome | None) -> bool:
    """Return True if later jobs of the group may run after this outcome."""
    return outcome is not None and (outcome.state in {"succeeded", "cancelled"} or not outcome.holds)


def _label(outcome: Outcome) -> str:
    """Return the outcome of an attempt as the label of a metric."""
    if outcome.state != "scheduled":
        return outcome.state
    return "handed back" if outcome.refund else "retried"
