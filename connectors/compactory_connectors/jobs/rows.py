"""Rows of claimed jobs, and the outcomes of their attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias

import orjson

__all__ = ["Assigned", "Chain", "Claimed", "Outcome", "executor_of", "outcomes_json"]


class Assigned(NamedTuple):
    """The partitions of an executor; ``of`` is the number of all partitions."""

    partitions: tuple[int, ...]
    of: int


class Claimed(NamedTuple):
    """A claimed job, with the columns of its row."""

    id: int
    type: str
    group: str | None
    origin: str | None
    place: int
    attempt: int
    token: int
    rescues: int
    cancelling: bool
    payload: str
    headers: Mapping[str, str] | None
    run_at: datetime
    created_at: datetime


Chain: TypeAlias = list[Claimed]
"""Jobs of one group in their order, or one job without a group."""


@dataclass(slots=True, kw_only=True)  # not frozen: that takes four times as long to make
class Outcome:
    """The outcome of an attempt: the next ``state`` of the job, and the ``delay`` in seconds if it is ``scheduled``.

    ``refund`` 1: the attempt does not count. ``holds``: later jobs of the group wait. Without ``history`` a job that
    succeeds is deleted.
    """

    id: int
    token: int
    state: str
    delay: float = 0.0
    error: str | None = None
    holds: bool = True
    refund: int = 0
    history: bool = True

    @classmethod
    def back(cls, job: Claimed, delay: float = 0.0) -> Outcome:
        """Return the outcome that schedules a job again as if it had not been claimed."""
        return cls(id=job.id, token=job.token, state="scheduled", delay=delay, refund=1)


def outcomes_json(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the parameters of jobs/finish."""
    return {"outcomes": orjson.dumps(outcomes).decode()}


def executor_of(job: Claimed) -> int:
    """Return the executor that claimed a job."""
    return job.token >> 32
