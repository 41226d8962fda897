"""What a benchmark returns, and how figures are taken: alternating processes, medians."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = ["Figures", "Row", "alternate"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. ``met`` is None where nothing is demanded."""

    what: str
    figure: str
    beside: str = ""
    ratio: float | None = None
    wanted: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Figures:
    """What the programs of one comparison printed, round by round."""

    rounds: dict[str, list[dict[str, Any]]]

    def median(self, name: str, figure: str) -> float:
        """Return the median of a program's figure."""
        return median(each[figure] for each in self.rounds[name])

    def ratio(self, name: str, beside: str, figure: str = "seconds") -> float:
        """Return how many times better than ``beside`` the program is: the median of the ratios of each round."""
        pairs = zip(self.rounds[beside], self.rounds[name], strict=True)
        return median(theirs[figure] / ours[figure] for theirs, ours in pairs)


def alternate(commands: Mapping[str, Sequence[str]], rounds: int) -> Figures:
    """Run each ``python -m …`` in a process of its own, in turns; return the figures that each prints as JSON.

    In turns, because the machine is not equally busy all the time; one more round first, to warm the page cache.
    """
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            done = subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, text=True)
            if number:
                figures[name].append(json.loads(done.stdout))
    return Figures(figures)
