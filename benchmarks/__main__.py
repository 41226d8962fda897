"""Runs the benchmarks and prints a table of ratios: ``python -m benchmarks [NAME…] [--rounds N]``.

Every module of this folder that has a ``run(rounds) -> list[Row]`` is a benchmark of that name.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks.rows import Row

Benchmark = Callable[[int], list[Row]]
OUT = Path(__file__).with_name("out")


def found() -> dict[str, Benchmark]:
    """Return the benchmarks by name."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")]
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    return {name: module.run for name, module in modules.items() if hasattr(module, "run")}


def show(console: Console, rows: list[Row]) -> None:
    table = Table(title=f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    for heading in ("what", "figure", "beside", "ratio", "wanted", ""):
        table.add_column(heading, justify="left" if heading in ("what", "beside", "") else "right")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.what, row.figure, row.beside, ratio, row.wanted, {True: "✓", False: "✗", None: ""}[row.met])
    console.print(table)


def main() -> None:
    known = found()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(known)}; default: all")
    parser.add_argument("--rounds", type=int, default=5, help="alternating runs, of which the medians are shown")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in known]
    if unknown:
        parser.error(f"no benchmark called {', '.join(unknown)}; there are: {', '.join(known)}")
    console = Console()
    OUT.mkdir(exist_ok=True)
    for name in chosen.names or known:
        console.print(f"[bold]{name}[/bold] …")
        rows = known[name](chosen.rounds)
        show(console, rows)
        report = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "load": os.getloadavg(),
            "rows": [asdict(row) for row in rows],
        }
        (OUT / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
