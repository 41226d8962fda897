"""Progress of loads: bars with rate and remaining time on a terminal, else log lines."""

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

__all__ = ["Bar", "Bars", "LoadingBar", "bars_of_loads"]

log = logging.getLogger("compactory.loading")

_SAY_EVERY = 5.0  # seconds between two log lines


@dataclass(frozen=True, slots=True)
class Bar:
    """A progress bar and the text after it. ``total`` is 0 while it is not known."""

    name: str
    completed: float = 0
    total: float = 0
    text: str = ""


class Bars:
    """Bars on stderr until the block ends, if stderr is a terminal. Belongs to one thread."""

    def __init__(self) -> None:
        self._shown: Progress | None = None
        self._tasks: dict[Hashable, TaskID] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.show({})

    def show(self, bars: Mapping[Hashable, Bar]) -> None:
        """Show these bars instead of the previous ones. The same key is the same bar."""
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
    """A bar on stderr while its block runs; if stderr is not a terminal, a log line every 5 seconds.

    Pass ``update`` to a store as ``on_progress``. Belongs to the thread that runs the block. ``lines`` is False if
    the store's own log lines are shown.
    """

    def __init__(self, name: str, *, lines: bool = True) -> None:
        self._name = name
        self._lines = lines
        self._said_at = time.monotonic()
        self._bars = Bars()

    def __enter__(self) -> Self:
        log.setLevel(logging.INFO)  # shown at every log level: a load takes minutes
        self._bars.show({self._name: Bar(self._name)})
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.show({})

    def update(self, loading: Loading) -> None:
        """Show the load's progress."""
        self._bars.show({self._name: Bar(self._name, loading.read, loading.total, _loading_text(loading))})
        lines = self._lines and not error_output().is_terminal
        if lines and time.monotonic() - self._said_at >= _SAY_EVERY:
            self._said_at = time.monotonic()
            log.info("%s: %s", self._name, loading)


def bars_of_loads(statuses: Iterable[SourceStatus]) -> dict[Hashable, Bar]:
    """Return a bar for each table that a connector loads."""
    return {
        (status.connector, table.table): Bar(
            f"loading {table.table}", load.rows, load.of, _rate_text(load.rows, load.of, load.rate, load.eta)
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


def _rate_text(completed: int, total: int, rate: float, seconds_left: float | None) -> str:
    """Return ``250,000 of 1,000,000  125,000/s  6 s left``."""
    text = f"{number(completed)} of {number(total)}  {rate:,.0f}/s"
    return text if seconds_left is None else f"{text}  {seconds_left:.0f} s left"


def _loading_text(loading: Loading) -> str:
    """Return share, rate and remaining time; an empty text while the total is not known."""
    if not loading.total:
        return ""
    return f"{loading.share:.0%}  {_rate_text(loading.read, loading.total, loading.rate, loading.eta_seconds)}"
