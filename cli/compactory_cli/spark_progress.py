"""How far a job on Spark is: a bar with rows, rate and time left on a terminal, a line a stage elsewhere."""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .loading_bar import loading_bars
from .terminal import errors, number

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

__all__ = ["StageBars"]

log = logging.getLogger("compactory.spark")


class StageBars:
    """Shows one stage at a time while its block runs; see ``Stages`` of the load."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._task: TaskID | None = None
        self._name = ""
        self._rows: int | None = None
        self._started = 0.0

    def __enter__(self) -> Self:
        log.setLevel(logging.INFO)
        if errors().is_terminal:
            self._bars = loading_bars(errors())
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def watch(self, spark: SparkSession) -> None:
        """Ask this session from now on how far it is."""

    def begin(self, stage: str, rows: int | None) -> None:
        """A stage begins."""
        self._name, self._rows, self._started = stage, rows, time.monotonic()
        if self._bars is not None:
            self._task = self._bars.add_task(stage, total=None, told=f"{number(rows)} rows" if rows else "")

    def end(self) -> None:
        """It is over."""
        seconds = time.monotonic() - self._started
        if self._bars is not None and self._task is not None:
            self._bars.remove_task(self._task)
        rows = f", {number(self._rows)} rows" if self._rows else ""
        log.info("%s: %.1f s%s", self._name, seconds, rows)
