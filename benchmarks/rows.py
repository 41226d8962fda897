"""What a benchmark is made of: comparisons, whose programs run in turns, and the rows that their figures make. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = ["AT_LEAST", "AT_MOST", "Figures", "Row", "Wanted", "beside", "plain"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. ``met`` is None where nothing is demanded, or nothing could be measured.

    ``wins`` says whether we are at least as good as what we are beside; None where there is no such thing.
    """

    what: str
    figure: str
    beside: str = ""
    ratio: float | None = None
    wanted: str = ""
    met: bool | None = None
    wins: bool | None = None


@dataclass(frozen=True)
class Figures:
    """What the programs of one comparison printed, round by round; ``absent`` says why a program could not be run."""

    rounds: Mapping[str, list[dict[str, Any]]]
    absent: Mapping[str, str]

    def median(self, name: str, figure: str) -> float:
        """Return the median of a program's figure."""
        return float(median(each[figure] for each in self.rounds[name]))

    def ratio(self, name: str, beside: str, figure: str = "seconds") -> float:
        """Return how many times ``beside``'s figure is the program's: the median of the ratios of each round."""
        pairs = zip(self.rounds[beside], self.rounds[name], strict=True)
        return float(median(theirs[figure] / ours[figure] for theirs, ours in pairs))

    def lacking(self, *names: str) -> str | None:
        """Return why one of these programs has no figures, or None."""
        return next((self.absent[name] for name in names if name in self.absent), None)


@dataclass(frozen=True)
class Wanted:
    """What a row has to reach: ``sign`` and a bound on the ratio, or on a figure in a unit."""

    sign: str
    bound: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}{' ' * bool(self.unit)}{self.unit}"

    def met(self, value: float) -> bool:
        """Say whether the value is good enough."""
        return value >= self.bound if self.sign == AT_LEAST else value <= self.bound


AT_LEAST = "≥"
AT_MOST = "≤"
Describe = Callable[[Figures, str], str]


def beside(
    taken: Figures,
    what: str,
    ours: str,
    peer: tuple[str, str],
    describe: Describe,
    *,
    figure: str = "seconds",
    wanted: Wanted | None = None,
) -> Row:
    """Return the row of one program beside another; ``peer`` is its name among the figures and for people.

    The ratio of times (``…seconds``) and rates (``…rate``) says how many times faster ours is; that of anything else
    (memory, latency) is ours divided by the peer's.
    """
    name, called = peer
    lacking = taken.lacking(ours, name)
    if lacking is not None:
        return Row(what=what, figure=f"not measured: {lacking}", beside=called, wanted=str(wanted or ""))
    times = figure.endswith("seconds")
    faster = times or figure.endswith("rate")
    ratio = taken.ratio(ours, name, figure) if times else taken.ratio(name, ours, figure)
    return Row(
        what=what,
        figure=describe(taken, ours),
        beside=f"{called} {describe(taken, name)}",
        ratio=ratio,
        wanted=str(wanted or ""),
        met=wanted.met(ratio) if wanted is not None else None,
        wins=ratio >= 1 if faster else ratio <= 1,
    )


def plain(
    taken: Figures, what: str, name: str, describe: Describe, *, figure: str = "", wanted: Wanted | None = None
) -> Iterator[Row]:
    """Yield the row of a program by itself; a bound is one on the figure."""
    lacking = taken.lacking(name)
    if lacking is not None:
        yield Row(what=what, figure=f"not measured: {lacking}", wanted=str(wanted or ""))
        return
    met = wanted.met(taken.median(name, figure)) if wanted is not None else None
    yield Row(what=what, figure=describe(taken, name), wanted=str(wanted or ""), met=met)
