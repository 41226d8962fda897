"""How far loads are: bars with rate and time left on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from .terminal import error_output, number

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from compactory.loading import Loading
    from compactory_connectors.source.status.status import SourceStatus

__all__ = ["Bar", "Bars", "LoadingBar", "bars_of_loads", "rate_text"]

log = logging.getLogger("compactory.loading")

_SAY_EVERY = 5.0  # seconds between two log lines


@dataclass(frozen=True, slots=True)
class Bar:
    """How much of something is done, and the text behind the bar. ``of`` is 0 while the total is not known."""

    name: str
    completed: float = 0
    total: float = 0
    text: str = ""


class Bars:
    """Bars on stderr until the block ends; nothing where stderr is no terminal. Belongs to one thread."""

    def __init__(self) -> None:
        self._shown: Progress | None = None
        self._tasks: dict[Hashable, TaskID] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.show({})

    def show(self, bars: Mapping[Hashable, Bar]) -> None:
        """Show these bars instead of the last ones; a key stands for the same bar each time."""
        if self._shown is None and bars and error_output().is_terminal:
            self._shown = _progress()
            self._shown.start()
        if self._shown is None:
            return
        for key in self._tasks.keys() - bars.keys():
            self._shown.remove_task(self._tasks.pop(key))
        for key, bar in bars.items():
            if key not in self._tasks:
                self._tasks[key] = self._shown.add_task(bar.name, total=None, text="")
            self._shown.update(self._tasks[key], total=bar.total or None, completed=bar.completed, text=bar.text)
        if not bars:
            self._shown.stop()
            self._shown = None


class LoadingBar:
    """A bar on stderr while its block runs, gone afterwards; where stderr is no terminal a log line now and then.

    ``update`` is an ``on_progress`` of a store; it belongs to the thread that runs the block. ``lines`` is False where
    the store's own lines are shown.
    """

    def __init__(self, name: str, *, lines: bool = True) -> None:
        self._name = name
        self._lines = lines
        self._said_at = time.monotonic()
        self._bars = Bars()

    def __enter__(self) -> Self:
        log.setLevel(logging.INFO)  # a load of minutes is told of whatever the level of the rest
        self._bars.show({self._name: Bar(self._name)})
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.show({})

    def update(self, loading: Loading) -> None:
        """Show how far it is."""
        self._bars.show({self._name: Bar(self._name, loading.read, loading.total, _loading_text(loading))})
        lines = self._lines and not error_output().is_terminal
        if lines and time.monotonic() - self._said_at >= _SAY_EVERY:
            self._said_at = time.monotonic()
            log.info("%s: %s", self._name, loading)


def bars_of_loads(statuses: Iterable[SourceStatus]) -> dict[Hashable, Bar]:
    """A bar for each table that one of these connectors loads."""
    return {
        (status.connector, table.table): Bar(
            f"loading {table.table}", load.rows, load.of, rate_text(load.rows, load.of, load.rate, load.eta)
        )
        for status in statuses
        for table in status.tables
        if (load := table.load) is not None
    }


def _progress() -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        console=error_output(),
        transient=True,
    )


def rate_text(completed: int, total: int, rate: float, seconds_left: float | None, unit: str = "") -> str:
    """``250,000 of 1,000,000  125,000/s  6 s left``."""
    text = f"{number(completed)} of {number(total)}{unit}  {rate:,.0f}/s"
    return text if seconds_left is None else f"{text}  {seconds_left:.0f} s left"


def _loading_text(loading: Loading) -> str:
    """Its share before the rest; nothing where the total is not known yet."""
    if not loading.total:
        return ""
    return f"{loading.share:.0%}  {rate_text(loading.read, loading.total, loading.rate, loading.eta_seconds)}"
