"""A check that a recorded history of a register is linearizable: the search of Wing and Gong, with Lowe's memory.

An operation takes effect once, at one moment between its call and its answer. An operation whose outcome is unknown
may take effect at any moment after its call, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

__all__ = ["Event", "linearizable"]


@dataclass(frozen=True, slots=True)
class Event:
    """An operation on the register. ``ended`` is infinite where the outcome is unknown."""

    began: float
    ended: float
    operation: Any
    result: Any


def linearizable(history: Sequence[Event], initial: Hashable, apply: Callable[[Any, Event], Hashable | None]) -> bool:
    """Say whether there is an order. ``apply`` returns the next state, None where the result does not fit the state.

    An operation that fits and leaves the state as it is goes first: that never spoils an order.
    """
    events = sorted(history, key=lambda event: event.began)
    certain = sum(1 << number for number, event in enumerate(events) if event.ended < inf)
    visited: set[tuple[int, Hashable]] = set()
    todo: list[tuple[int, Hashable]] = [(0, initial)]
    while todo:
        finished, state = todo.pop()
        if finished & certain == certain:
            return True
        if (finished, state) in visited:
            continue
        visited.add((finished, state))
        following = [(finished | 1 << number, apply(state, events[number])) for number in _candidates(events, finished)]
        idle = next((step for step in following if step[1] == state), None)
        todo += [idle] if idle is not None else [step for step in following if step[1] is not None]  # type: ignore[list-item]
    return False


def _candidates(events: Sequence[Event], finished: int) -> Iterator[int]:
    """Yield the operations that began before any other one that is not done had ended."""
    deadline = inf
    first = (~finished & (finished + 1)).bit_length() - 1
    for number in range(first, len(events)):
        if finished >> number & 1:
            continue
        if events[number].began > deadline:
            return
        deadline = min(deadline, events[number].ended)
        yield number
