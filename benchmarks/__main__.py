"""Measures beside bare loops and peers, and prints ratios: ``python -m benchmarks [NAME…]``.

A NAME is a module of `comparisons` or one of its comparisons; ``report`` writes the report. Results go to
``out/results.jsonl`` as they come.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from benchmarks import comparisons
from benchmarks.conditions import conditions, load
from benchmarks.results import Results
from benchmarks.rows import Row
from benchmarks.stage import Comparison, Stage, Terms, kafka_server

ORDER = ("bootstrap", "disk", "lookups", "visibility", "growth")  # the others follow


def found(terms: Terms) -> dict[str, dict[str, Comparison]]:
    """Return the comparisons of each module."""
    names = [module.name for module in pkgutil.iter_modules(comparisons.__path__)]
    names.sort(key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    modules = {name: importlib.import_module(f"benchmarks.comparisons.{name}") for name in names}
    return {name: module.comparisons(terms) for name, module in modules.items()}


def chosen(known: dict[str, dict[str, Comparison]], names: Iterable[str]) -> dict[str, Comparison]:
    """Return the comparisons of these modules, or those of these names; all for no names. Raises KeyError."""
    everything = {name: comparison for module in known.values() for name, comparison in module.items()}
    taken: dict[str, Comparison] = {}
    for name in names:
        taken |= known[name] if name in known else {name: everything[name]}
    return taken or everything


def show(console: Console, title: str, rows: list[Row]) -> None:
    table = Table(title=title)
    for heading in ("what", "figure", "beside", "ratio", "wanted", ""):
        table.add_column(heading, justify="left" if heading in ("what", "figure", "beside", "") else "right")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.what, row.figure, row.beside, ratio, row.wanted, {True: "✓", False: "✗", None: ""}[row.met])
    console.print(table)


def measure(console: Console, stage: Stage, comparisons: dict[str, Comparison], results: Results) -> bool:
    """Measure each; say whether all could be. One that fails does not stop the others."""
    whole = True
    for number, (name, comparison) in enumerate(comparisons.items(), 1):
        before, began = load(), time.monotonic()
        try:
            measured = comparison(stage)
        except Exception as error:  # noqa: BLE001 (whatever it was, the other comparisons are worth having)
            console.print(f"[red]{name} failed[/red]: {type(error).__name__}: {error}", highlight=False)
            whole = False
            continue
        results.add(name, measured, (before, load()))
        title = f"{name} ({number} of {len(comparisons)}, {time.monotonic() - began:.0f} s, load {before} → {load()})"
        show(console, title, measured.rows)
    return whole


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="module or comparison; default: all; or: report")
    parser.add_argument(
        "--full", action="store_true", help="10 M entries on disk and in the plots, five rounds, an hour's snapshot"
    )
    parser.add_argument("--resume", action="store_true", help="leave out what the last run on the same terms has")
    parser.add_argument("--rounds", type=int, help="alternating runs, of which the medians are shown")
    parser.add_argument("--entries", type=int, help="of the large topics; default: 1,000,000")
    parser.add_argument("--held", type=float, help="seconds of load under a held snapshot; default: 10, full: 3,600")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    return parser.parse_args()


def terms(given: argparse.Namespace) -> Terms:
    """Return the terms of a run."""
    made = Terms.full() if given.full else Terms()
    entries = given.entries or made.entries
    return Terms(
        rounds=given.rounds or made.rounds,
        seconds=made.seconds,
        entries=entries,
        disk_entries=made.disk_entries if given.entries is None else entries,
        held=given.held or made.held,
        growth=made.growth if given.entries is None else tuple(size for size in made.growth if size <= entries),
    )


def main() -> int:
    given, results = arguments(), Results()
    console = Console() if sys.stdout.isatty() else Console(width=170)
    if given.names == ["report"]:
        from benchmarks.report import write

        console.print(f"written: {', '.join(write(results))}")
        return 0
    agreed = terms(given)
    known = found(agreed)
    if given.list:
        for module, comparisons in known.items():
            console.print(f"{module}: {', '.join(comparisons)}", highlight=False)
        return 0
    try:
        wanted = chosen(known, given.names)
    except KeyError as error:
        console.print(f"no benchmark is called {error}; --list shows them all")
        return 2
    done = results.done(agreed) if given.resume else set()
    if not done:
        results.begin(conditions(), agreed)
    left = {name: comparison for name, comparison in wanted.items() if name not in done}
    if not left:
        console.print("nothing is left to measure")
        return 0
    with kafka_server() as address:
        return 0 if measure(console, Stage(kafka=address, terms=agreed), left, results) else 1


if __name__ == "__main__":
    sys.exit(main())
