"""How far directories have loaded: a bar with rate and time left on a terminal; elsewhere the store's log lines do."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from .terminal import errors, number

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from compactory.loading import Loading

__all__ = ["LoadingBar"]


class LoadingBar:
    """A bar on stderr while its block runs, gone afterwards; nothing where stderr is no terminal.

    ``update`` is an ``on_progress`` of a store; it belongs to the thread that runs the block.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if errors().is_terminal:
            self._bar = _bar()
            self._task = self._bar.add_task(self._what, total=None, told="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, loading: Loading) -> None:
        """Show how far it is."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=loading.total or None, completed=loading.read, told=_told(loading))


def _bar() -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[told]}", markup=False),
        console=errors(),
        transient=True,
    )


def _told(loading: Loading) -> str:
    """``86 %  6 of 7  12,345/s  3 s left``."""
    if not loading.total:
        return ""
    left = loading.eta_seconds
    parts = [f"{loading.share:.0%}", f"{number(loading.read)} of {number(loading.total)}", f"{loading.rate:,.0f}/s"]
    return "  ".join([*parts, f"{left:.0f} s left"] if left is not None else parts)
