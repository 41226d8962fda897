"""Limits of types in all executors: how many jobs run at once, and how many start in a window of time.

States of a limited type in an executor:

    ready → claimed   jobs may start; there may be more
    ready → full      as many jobs run as may; the end of one, or half a second, makes the type ready
    ready → closed    as many jobs have started as may in this window; its end makes the type ready
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from compactory.errors import ConfigError
from compactory_connectors.postgres.position import Position

__all__ = ["JobLimit", "LimitedType", "LimitedTypes", "limit_of"]

_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_RATE = re.compile(rf"([1-9][0-9]{{0,8}}) per ({'|'.join(_SECONDS)})")
_MOST: Final = 1_000_000_000

_INTERVAL = 0.02  # seconds between claims of a type; after an end other executors may claim first for so long


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimit:
    """At most ``running`` jobs of a type at once, and ``rate_count`` starts in each window of ``rate_seconds``.

    None: no such limit. ``by_operator`` False: handlers declare it.
    """

    type: str
    running: int | None = None
    rate_count: int | None = None
    rate_seconds: int | None = None
    by_operator: bool = False

    @property
    def rate(self) -> str | None:
        """The rate as text, such as ``100 per minute``."""
        if self.rate_seconds is None:
            return None
        unit = next((name for name, seconds in _SECONDS.items() if seconds == self.rate_seconds), None)
        return f"{self.rate_count} per {unit or f'{self.rate_seconds} seconds'}"

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of statements about the limit."""
        return {name: getattr(self, name) for name in ("type", "running", "rate_count", "rate_seconds")}

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        source = "operator" if self.by_operator else "handlers"
        return {"type": self.type, "running": self.running, "rate": self.rate, "set_by": source}


def limit_of(type_: str, running: int | None, rate: str | None) -> JobLimit | None:
    """Return the limit of a type; None if neither is given. Raises ConfigError with every problem."""
    problems: list[str] = []
    is_number = isinstance(running, int) and not isinstance(running, bool)
    if running is not None and not (is_number and 1 <= running <= _MOST):
        problems.append(f"the limit must be a number of jobs from 1 to {_MOST:,}, not {running!r}")
    match = None if rate is None else _RATE.fullmatch(str(rate))
    if rate is not None and match is None:
        units = ", ".join(_SECONDS)
        problems.append(f"the rate must be a number of jobs per {units}, such as '100 per minute', not {rate!r}")
    if problems:
        raise ConfigError(problems)
    if running is None and match is None:
        return None
    count, seconds = (int(match[1]), _SECONDS[match[2]]) if match else (None, None)
    return JobLimit(type=type_, running=running, rate_count=count, rate_seconds=seconds)


@dataclass(slots=True, kw_only=True)
class LimitedType:
    """A type with a limit in this executor. ``groups``: groups whose jobs are to be claimed before others."""

    limit: JobLimit
    position: Position
    groups: dict[str, None] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)  # groups of the current claim
    next_claim: float = 0.0  # by the monotonic clock
    is_waiting: bool = True  # for next_claim; else for a notification

    def next_groups(self, count: int) -> list[str]:
        """Return up to ``count`` groups to claim from."""
        self.requested = list(islice(self.groups, count))
        return self.requested

    def settle(self, position: Position, due_groups: Iterable[str], refused: Iterable[str], *, is_full: bool) -> None:
        """Record a claim from the requested groups or from the position. ``is_full``: there may be more jobs."""
        self.position = position
        for name in self.requested:
            self.groups.pop(name, None)
        self.groups.update(dict.fromkeys(due_groups))
        is_full = is_full or bool(self.groups)
        self.groups.update(dict.fromkeys(refused))
        self.next_claim = 0.0 if is_full else time.monotonic() + _INTERVAL
        self.is_waiting = is_full or bool(self.groups)

    def wait(self, seconds: float | None) -> None:
        """Claim after ``seconds``; None: after a notification, or with the next round but one."""
        self.next_claim = time.monotonic() + (_INTERVAL if seconds is None else seconds)
        self.is_waiting = seconds is not None


class LimitedTypes:
    """The limited types of an executor. Owned by the keeper's thread."""

    def __init__(self) -> None:
        self._types: dict[str, LimitedType] = {}

    @property
    def names(self) -> frozenset[str]:
        """The limited types."""
        return frozenset(self._types)

    def follow(self, limits: Iterable[JobLimit], position: Position) -> bool:
        """Follow limits that may have changed; return True if they have."""
        current = {limit.type: limit for limit in limits}
        if current == {name: item.limit for name, item in self._types.items()}:
            return False
        self._types = {name: LimitedType(limit=limit, position=position) for name, limit in current.items()}
        return True

    def read_from(self, position: Position) -> None:
        """Read jobs of every type from this position on."""
        for item in self._types.values():
            item.position, item.next_claim, item.is_waiting = position, 0.0, True
            item.groups.clear()

    def ready(self) -> Iterator[LimitedType]:
        """Yield the types to claim from now. A type that comes too early is claimed from later."""
        for item in self._types.values():
            if time.monotonic() >= item.next_claim:
                yield item
            else:
                item.is_waiting = True

    def wake(self) -> None:
        """Claim from every type in the next round, because a job has ended or limits have changed."""
        for item in self._types.values():
            item.next_claim, item.is_waiting = 0.0, True

    def add_ends(self, types: Iterable[str], *, is_alone: bool) -> bool:
        """Record ends of jobs; return True if one of them had a limit. Other executors may claim first."""
        ended = [self._types[name] for name in set(types) if name in self._types]
        for item in ended:
            item.next_claim = 0.0 if is_alone else time.monotonic() + _INTERVAL
            item.is_waiting = True
        return bool(ended)

    def seconds_until_claim(self) -> float | None:
        """Return the seconds until the first type is to be claimed from; None: after a notification."""
        due = [item.next_claim for item in self._types.values() if item.is_waiting]
        return max(0.0, min(due) - time.monotonic()) if due else None
