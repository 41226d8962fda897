"""What ``compactory verify`` ends with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compactory_connectors.source.reconcile.outcome import Outcome
    from compactory_connectors.spark.verification.side import SideOutcome

__all__ = ["code_of"]

_DIFFERENT, _NOT_IN_TIME = 1, 3


def code_of(outcomes: Sequence[Outcome], sides: Sequence[SideOutcome] = ()) -> int:
    """The exit code that tables, and what else their topic was compared with, make together."""
    if any(side.different or side.lasting for side in sides):
        return _DIFFERENT
    if any(outcome.different or outcome.unsure for outcome in outcomes):
        return _DIFFERENT
    equal = all(outcome.equal for outcome in outcomes) and all(side.equal for side in sides)
    return 0 if equal else _NOT_IN_TIME
