"""What was measured, kept as lines of JSON in ``out``: one a comparison, so that a run that was cut off is resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.rows import Row
from benchmarks.stage import Measured, Terms

__all__ = ["OUT", "Results"]

OUT = Path(__file__).with_name("out")


class Results:
    """A file of lines: a run's conditions, then its comparisons as they are done. Only ever appended to."""

    def __init__(self, path: Path = OUT / "results.jsonl") -> None:
        self._path = path

    def begin(self, conditions: dict[str, Any], terms: Terms) -> None:
        """Note that a run begins."""
        self._append({"run": conditions, "terms": asdict(terms)})

    def add(self, comparison: str, measured: Measured, load: tuple[float, float]) -> None:
        """Note what a comparison came to, and the load before and after it."""
        rows = [asdict(row) for row in measured.rows]
        self._append({"comparison": comparison, "load": load, "rows": rows, "figures": dict(measured.figures)})

    def done(self, terms: Terms) -> set[str]:
        """Return the comparisons that the last run has, if it was on the same terms; else nothing."""
        lines = list(self._lines())
        runs = [number for number, line in enumerate(lines) if "run" in line]
        if not runs or lines[runs[-1]]["terms"] != json.loads(json.dumps(asdict(terms))):
            return set()
        return {line["comparison"] for line in lines[runs[-1] + 1 :]}

    def latest(self) -> dict[str, dict[str, Any]]:
        """Return the newest result of each comparison, with the ``run`` and the ``terms`` that it belongs to."""
        found: dict[str, dict[str, Any]] = {}
        run: dict[str, Any] = {}
        for line in self._lines():
            if "run" in line:
                run = line
            else:
                rows = [Row(**row) for row in line["rows"]]
                found[line["comparison"]] = {**run, **line, "rows": rows}
        return found

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        for line in self._path.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue  # the writer was killed in the middle of it

    def _append(self, line: dict[str, Any]) -> None:
        self._path.parent.mkdir(exist_ok=True)
        whole = not self._path.exists() or self._path.read_bytes()[-1:] in (b"", b"\n")
        with self._path.open("a") as file:
            file.write("\n" * (not whole) + json.dumps(line) + "\n")
