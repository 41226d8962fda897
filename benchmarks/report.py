"""Writes ``REPORT.md`` from what was measured last: tables, plots, and what the figures do not say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.plots import PLOTS, draw, draw_outage
from benchmarks.results import Results
from benchmarks.rows import Row

__all__ = ["REPORT", "text", "write"]

REPORT = Path(__file__).with_name("REPORT.md")
CAVEATS = Path(__file__).with_name("caveats.md")
SECTIONS = {
    "bootstrap-": "Bootstrap in memory",
    "article": "Bootstrap in memory",
    "global-table-collectors": "Collectors of GlobalKTable",
    "disk": "On disk",
    "restart": "On disk",
    "restart-memory": "On disk",
    "lookups": "Reads",
    "readers": "Reads",
    "visibility": "From a write to its sight",
    "growth-": "Growth",
    "http": "HTTP",
    "latency": "From a commit in Postgres to its sight",
    "commits": "From a commit in Postgres to its sight",
    "idle": "Idle tables",
    "outage": "While Postgres is down",
    "transforms": "Rows through transforms",
    "jobs-": "Jobs",
}
OTHERS = "Others"


def write(results: Results) -> list[str]:
    """Write report and plots; return the names of the files. Raises FileNotFoundError where nothing was measured."""
    latest = results.latest()
    if not latest:
        raise FileNotFoundError("nothing was measured yet: run python -m benchmarks first")
    growth = {
        int(name.removeprefix("growth-")): each["figures"]
        for name, each in latest.items()
        if name.startswith("growth-")
    }
    paths = draw(growth) if growth else []
    if outage := latest.get("outage"):
        paths.append(draw_outage(outage["figures"]["outage"][0]))
    REPORT.write_text(text(latest, plotted=bool(growth)))
    return [path.name for path in (REPORT, *paths)]


def text(latest: Mapping[str, Mapping[str, Any]], *, plotted: bool) -> str:
    """Return the report of these results."""
    newest = max((each["run"] for each in latest.values()), key=lambda run: str(run["at"]))
    parts = [f"# Benchmark report, {newest['at'][:10]}", *_conditions(newest, latest)]
    for title, members in _sections(latest):
        parts.append(f"## {title}")
        if title == SECTIONS["growth-"] and plotted:
            parts.extend(f"![{plot.title}](plots/{plot.name}.svg)" for plot in PLOTS)
        if title == SECTIONS["outage"]:
            parts.append("![Lookups a second](plots/outage.svg)")
        parts.append(_table(row for member in members for row in member["rows"]))
        parts.append(_taken(members))
    rows = [row for each in latest.values() for row in each["rows"]]
    parts.extend(["## Where it falls short", _losses(rows)])
    parts.append(CAVEATS.read_text().strip())
    return "\n\n".join(part for part in parts if part) + "\n"


def _conditions(run: Mapping[str, Any], latest: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    machine = f"{run['processor']}, {run['cores']} cores, {run['memory_gb']} GB, {run['system']}"
    loads = [value for each in latest.values() for value in each["load"]]
    yield (
        "Written by `python -m benchmarks report`; the method is in [README](README.md). Broker, peers and we share "
        "one machine; programs run in turns, each in a process of its own."
    )
    yield (
        f"- Machine: {machine}; load average {min(loads):.1f} to {max(loads):.1f} while measuring\n"
        f"- Versions of the newest run: {versions}"
    )
    if median(each["load"][0] for each in latest.values()) > run["cores"]:
        yield "**The machine was busy with other work: take these figures for the harness at work, not for results.**"
    yield (
        "A ratio of times or rates says how many times faster we are (above 1: we are); one of memory or latency is "
        "ours divided by theirs (below 1: ours is smaller). ✓ and ✗ say whether what was wanted was reached."
    )


def _sections(latest: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    grouped: dict[str, list[Mapping[str, Any]]] = {title: [] for title in [*SECTIONS.values(), OTHERS]}
    for name, each in latest.items():
        grouped[next((title for prefix, title in SECTIONS.items() if name.startswith(prefix)), OTHERS)].append(each)
    for title, members in grouped.items():
        if members:
            yield title, members


def _table(rows: Iterable[Row]) -> str:
    lines = ["| what | figure | beside | ratio | wanted | |", "|---|---|---|--:|--:|---|"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        mark = {True: "✓", False: "✗", None: ""}[row.met]
        cells = (row.what, row.figure, row.beside, ratio, row.wanted, mark)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _taken(members: Iterable[Mapping[str, Any]]) -> str:
    taken = sorted({(each["run"]["at"][:16].replace("T", " "), each["terms"]["rounds"]) for each in members})
    return "Taken " + ", ".join(f"{at} (up to {rounds} rounds)" for at, rounds in taken) + "."


def _losses(rows: Iterable[Row]) -> str:
    missed = [f"- **wanted {row.wanted}, {_reached(row)}**: {_both(row)}" for row in rows if row.met is False]
    slower = [f"- {_both(row)} (ratio {row.ratio:.2f})" for row in rows if row.met is None and row.wins is False]
    return "\n".join(missed + slower) or "Nowhere among these rows."


def _reached(row: Row) -> str:
    return row.figure if row.ratio is None else f"ratio {row.ratio:.2f}"


def _both(row: Row) -> str:
    return f"{row.what}: {row.figure}" + (f", {row.beside}" if row.beside else "")
