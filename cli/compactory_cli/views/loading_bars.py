"""How far loads are: bars with rate and time left on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from .terminal import errors, number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from compactory.ingest.loading import Loading
    from compactory_connectors.source.control.load_progress import Load
    from compactory_connectors.source.control.status import SourceStatus

__all__ = ["LoadBars", "LoadingBar", "loading_bars", "told"]

log = logging.getLogger("compactory.loading")

_SAY_EVERY = 5.0  # seconds between two log lines


class LoadingBar:
    """A bar on stderr while its block runs, gone afterwards; where stderr is no terminal a log line now and then.

    ``update`` is an ``on_progress`` of a store; it belongs to the thread that runs the block. ``lines`` is False where
    the store's own lines are shown.
    """

    def __init__(self, what: str, *, lines: bool = True) -> None:
        self._what = what
        self._lines = lines
        self._said_at = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        log.setLevel(logging.INFO)  # a load of minutes is told of whatever the level of the rest
        if errors().is_terminal:
            self._bar = loading_bars(errors())
            self._task = self._bar.add_task(self._what, total=None, told="")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, loading: Loading) -> None:
        """Show how far it is."""
        if self._bar is None and self._lines and time.monotonic() - self._said_at >= _SAY_EVERY:
            self._said_at = time.monotonic()
            log.info("%s: %s", self._what, loading)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=loading.total or None, completed=loading.read, told=_told(loading))


class LoadBars:
    """Bars on stderr for as long as sources load tables, whose log lines tell it elsewhere. Belongs to one thread."""

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
            bars.update(
                self._tasks[place],
                total=load.of or None,
                completed=load.rows,
                told=told(load.rows, load.of, load.rate, load.eta),
            )
        if not loads:
            bars.stop()
            self._bars = None


def loading_bars(console: Console) -> Progress:
    """An empty group of bars on a terminal; a task has a description and what is ``told`` of it."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[told]}", markup=False),
        console=console,
        transient=True,
    )


def told(done: int, of: int, rate: float, left: float | None, unit: str = "") -> str:
    """``250,000 of 1,000,000  125,000/s  6 s left``."""
    text = f"{number(done)} of {number(of)}{unit}  {rate:,.0f}/s"
    return text if left is None else f"{text}  {left:.0f} s left"


def _told(loading: Loading) -> str:
    """Its share before the rest; nothing where the total is not known yet."""
    if not loading.total:
        return ""
    return f"{loading.share:.0%}  {told(loading.read, loading.total, loading.rate, loading.eta_seconds)}"
