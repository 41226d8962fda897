"""Progress of loads on a terminal: a line with rate and remaining time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from .terminal import error_output, escape, number

if TYPE_CHECKING:
    from rich.status import Status

    from compactory.loading import Loading
    from compactory_connectors.source.status.status import SourceStatus

__all__ = ["LoadingLine", "ProgressLines", "lines_of_loads"]


class ProgressLines:
    """Lines on stderr until the block ends, if stderr is a terminal. Belongs to one thread."""

    def __init__(self) -> None:
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.show(())

    def show(self, lines: Iterable[str]) -> None:
        """Show these lines instead of the previous ones."""
        text = escape("\n".join(lines))
        if self._status is not None and not text:
            self._status.stop()
            self._status = None
        elif self._status is not None:
            self._status.update(text)
        elif text and error_output().is_terminal:
            self._status = error_output().status(text)
            self._status.start()


class LoadingLine(ProgressLines):
    """The line of a store that loads; pass ``update`` to the store as ``on_progress``."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __enter__(self) -> Self:
        self.show([self._name])
        return self

    def update(self, loading: Loading) -> None:
        """Show the load's progress."""
        self.show([f"{self._name}  {_loading_text(loading)}"])


def lines_of_loads(statuses: Iterable[SourceStatus]) -> list[str]:
    """Return a line for each table that a connector loads."""
    return [
        f"loading {table.table}  {_rate_text(load.rows, load.of, load.rate, load.eta)}"
        for status in statuses
        for table in status.tables
        if (load := table.load) is not None
    ]


def _rate_text(completed: int, total: int, rate: float, seconds_left: float | None) -> str:
    """Return ``250,000 of 1,000,000  125,000/s  6 s left``."""
    text = f"{number(completed)} of {number(total)}  {rate:,.0f}/s"
    return text if seconds_left is None else f"{text}  {seconds_left:.0f} s left"


def _loading_text(loading: Loading) -> str:
    """Return share, rate and remaining time; an empty text while the total is not known."""
    if not loading.total:
        return ""
    return f"{loading.share:.0%}  {_rate_text(loading.read, loading.total, loading.rate, loading.eta_seconds)}"
