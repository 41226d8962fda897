"""What a benchmark returns, and how figures are taken: alternating processes, medians."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = ["Row", "alternate"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. ``met`` is None where nothing is demanded."""

    what: str
    figure: str
    beside: str = ""
    ratio: float | None = None
    wanted: str = ""
    met: bool | None = None


def alternate(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, dict[str, float]]:
    """Run each ``python -m …`` in a process of its own, in turns; return the medians of the figures it prints as JSON.

    In turns, because the machine is not equally busy all the time; one more round first, to warm the page cache.
    """
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            done = subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, text=True)
            if number:
                figures[name].append(json.loads(done.stdout))
    return {name: {key: median(each[key] for each in taken) for key in taken[0]} for name, taken in figures.items()}
