"""Counts of jobs by state over the last hour, for the timeline of the page of jobs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from compactory.errors import CompactoryError
from compactory_connectors.jobs.operators import JobCount, JobFilter, count_jobs
from compactory_connectors.jobs.statements import open_jobs

from .operators import Operators

__all__ = ["UNFINISHED", "JobCounts", "count_unfinished"]

UNFINISHED: Final = ("scheduled", "running", "failed")

_SECONDS = 10.0  # between two samples
_HOUR = 3600.0


def count_unfinished(connection: psycopg.Connection[Any]) -> dict[str, JobCount]:
    """Return the number of jobs in each state that is not an end. Raises psycopg.Error."""
    return {state: count_jobs(connection, JobFilter(state=state)) for state in UNFINISHED}


@dataclass(eq=False)
class JobCounts:
    """Takes a sample every ten seconds. Owned by one event loop."""

    operators: Operators
    times: deque[float] = field(default_factory=lambda: deque(maxlen=int(_HOUR / _SECONDS)))
    """Seconds since 1970 of each sample."""
    samples: deque[dict[str, JobCount]] = field(default_factory=lambda: deque(maxlen=int(_HOUR / _SECONDS)))
    """The counts by state; empty where the database was not reached."""

    async def follow(self) -> None:
        """Take samples until cancelled."""
        while True:
            try:
                counts = await self.operators.in_database(count_unfinished, open_jobs)
            except CompactoryError:
                counts = {}
            self.times.append(time.time())
            self.samples.append(counts)
            await asyncio.sleep(_SECONDS)

    def series(self) -> list[dict[str, Any]]:
        """Return the counts of each state in the form of charts; None is a gap."""
        if not any(self.samples):
            return []
        times = list(self.times)
        return [
            {
                "label": state,
                "times": times,
                "values": [counts[state].jobs if counts else None for counts in self.samples],
            }
            for state in UNFINISHED
        ]
