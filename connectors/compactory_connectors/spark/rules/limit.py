"""Limits of a load: a number of rows, or a share of them."""

from __future__ import annotations

from dataclasses import dataclass

from compactory.errors import ConfigError

from ..target import Change, Differences

__all__ = ["SHARE_OF_KEYS", "Limit", "missing_keys_problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most ``count``, or at most ``percent`` of all."""

    count: int | None = None
    percent: float | None = None

    @staticmethod
    def parse(text: str, flag: str) -> Limit:
        """``100`` or ``2.5%``. Raises ConfigError naming the flag."""
        number, percent, tail = text.strip().partition("%")
        try:
            if percent and not tail and 0 <= float(number) <= 100:
                return Limit(percent=float(number))
            if not percent and int(number) >= 0:
                return Limit(count=int(number))
        except ValueError:
            pass
        raise ConfigError(f"{flag} {text}: must be a number of rows such as 100, or a share such as 2.5%")

    def allows(self, count: int, of: int) -> bool:
        if self.count is not None:
            return count <= self.count
        return count * 100 <= (self.percent or 0) * of

    def __str__(self) -> str:
        return f"{self.count:,}" if self.count is not None else f"{self.percent:g}%"


SHARE_OF_KEYS = Limit(percent=20)
"""The most keys of a table that one load deactivates unless an option allows more. Sources have the same limit."""


def missing_keys_problem(differences: Differences, limit: Limit, option: str) -> str | None:
    """Return why a load is refused that deactivates more keys than the limit allows; None if it does not."""
    missing = differences.counts.get(Change.DEACTIVATE, 0)
    if limit.allows(missing, differences.present):
        return None
    return (
        f"{missing:,} of {differences.present:,} keys are missing from the source, and {option} allows {limit}: check"
        " that the source is complete, or allow more"
    )
