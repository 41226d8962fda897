"""Plots of growth for the report: time to ready, memory and reads over the number of entries, as small SVGs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.comparisons.growth import SIDES

__all__ = ["FOLDER", "PLOTS", "Plot", "draw", "draw_outage", "lines"]

FOLDER = Path(__file__).with_name("plots")
COLOURS = {
    "ours": "#0b6e4f",
    "disk": "#6bbf59",
    "table": "#c1440e",
    "table-disk": "#e8a87c",
    "ktables": "#3f5e98",
}
Growth = Mapping[int, Mapping[str, list[dict[str, Any]]]]  # entries → program → what it printed, round by round


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure over the number of entries. ``figures`` names it by program where it is not ``figure``."""

    name: str
    title: str
    unit: str
    figure: str
    figures: Mapping[str, str | None]
    scale: float = 1.0


# A JVM takes the heap that it is given: what lives there after a collection is what can be compared.
PLOTS = (
    Plot(name="ready", title="Time to ready", unit="seconds", figure="seconds", figures={}),
    Plot(
        name="memory",
        title=f"Resident memory once ready ({SIDES['table']}: live heap only)",
        unit="MB",
        figure="rss_mb",
        figures={"table": "heap_mb", "table-disk": None},
    ),
    Plot(
        name="gets",
        title="Decoded gets, one thread",
        unit="M/s",
        figure="rate",
        figures={"ktables": None},  # it decodes once, when a record comes
        scale=1e-6,
    ),
)


def lines(plot: Plot, growth: Growth) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each program that has some."""
    found: dict[str, list[tuple[int, float]]] = {}
    for name in SIDES:
        figure = plot.figures.get(name, plot.figure)
        points = [
            (entries, median(each[figure] for each in sides[name]) * plot.scale)
            for entries, sides in sorted(growth.items())
            if figure is not None and sides.get(name)
        ]
        if points:
            found[name] = points
    return found


def draw(growth: Growth, folder: Path = FOLDER) -> list[Path]:
    """Write the plots; return their paths. The same figures make the same bytes."""
    plt = _pyplot()
    folder.mkdir(exist_ok=True)
    paths = []
    for plot in PLOTS:
        figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        for name, points in lines(plot, growth).items():
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=SIDES[name], color=COLOURS[name])
        axes.set(title=plot.title, xlabel="entries", ylabel=plot.unit, xscale="log", yscale="log")
        axes.grid(which="major", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
        path = folder / f"{plot.name}.svg"
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        plt.close(figure)
        paths.append(path)
    return paths


def draw_outage(series: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    """Draw lookups a second over time, of which Postgres is down in the middle third; return the path.

    Its ground is transparent and its text grey: it can be read on light and on dark pages.
    """
    plt = _pyplot()
    folder.mkdir(exist_ok=True)
    step, grey = series["step"], "#808080"
    figure, axes = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
    for name, label, colour in (("store", "in a store", "#2a9d74"), ("postgres", "in Postgres", "#d9622b")):
        points = [(number * step, count / step) for number, count in enumerate(series[name])]
        axes.plot(*zip(*points[1:], strict=True), label=label, color=colour)
    third = len(series["store"]) * step / 3
    axes.axvspan(third, 2 * third, color=grey, alpha=0.15, linewidth=0)
    axes.set_yscale("symlog", linthresh=100)
    axes.set_ylim(bottom=0)
    axes.text(1.5 * third, 200, "Postgres is down", color=grey, ha="center")
    axes.set_title("Lookups a second, one thread", color=grey)
    axes.set_xlabel("seconds", color=grey)
    axes.tick_params(colors=grey, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(grey)
    axes.legend(frameon=False, labelcolor=grey, loc="lower right")
    path = folder / "outage.svg"
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return path


def _pyplot() -> Any:
    """Return matplotlib's plotting with texts as text and stable ids: files differ only where data differ."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "compactory", "font.family": "sans-serif"})
    return plt
