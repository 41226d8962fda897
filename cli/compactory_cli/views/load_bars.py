"""How far first loads of sources are: a bar for each on a terminal; elsewhere the sources' log lines tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from .loading_bar import loading_bars
from .terminal import errors, number

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from compactory_connectors.source.control.load_progress import Load
    from compactory_connectors.source.control.status import SourceStatus

__all__ = ["LoadBars"]


class LoadBars:
    """Bars on stderr for as long as tables are loaded. Belongs to one thread."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.show(())

    def show(self, statuses: Iterable[SourceStatus]) -> None:
        """Show how far these connectors' tables are; nothing where stderr is no terminal."""
        if not errors().is_terminal:
            return
        loads = {
            (status.connector, table.table): table.load
            for status in statuses
            for table in status.tables
            if table.load is not None
        }
        if self._bars is None and loads:
            self._bars = loading_bars(errors())
            self._bars.start()
        if self._bars is not None:
            self._update(self._bars, loads)

    def _update(self, bars: Progress, loads: dict[tuple[str, str], Load]) -> None:
        for gone in self._tasks.keys() - loads.keys():
            bars.remove_task(self._tasks.pop(gone))
        for place, load in loads.items():
            if place not in self._tasks:
                self._tasks[place] = bars.add_task(f"loading {place[1]}", total=None, told="")
            bars.update(self._tasks[place], total=load.of or None, completed=load.rows, told=_told(load))
        if not loads:
            bars.stop()
            self._bars = None


def _told(load: Load) -> str:
    """``250,000 of 1,000,000  125,000/s  6 s left``."""
    parts = [f"{number(load.rows)} of {number(load.of)}", f"{load.rate:,.0f}/s"]
    return "  ".join([*parts, f"{load.eta:.0f} s left"] if load.eta is not None else parts)
