"""How far a job on Spark is: a bar with rows, rate and time left on a terminal, a log line a stage elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from compactory_connectors.spark.stages import Stages

from .loading_bars import loading_bars, told
from .terminal import errors, number

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

__all__ = ["StageBars"]

log = logging.getLogger("compactory.spark")

_BEAT = 0.5  # seconds between two looks at Spark's tasks


class StageBars(Stages):
    """Shows one stage at a time while its block runs. A thread of its own asks Spark."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._task: TaskID | None = None
        self._stage, self._rows, self._started = "", 0, time.monotonic()
        self._spark: SparkSession | None = None
        self._over = Event()
        self._beat = Thread(target=self._watch, name="compactory-spark-progress", daemon=True)

    def __enter__(self) -> Self:
        log.setLevel(logging.INFO)  # a job of minutes is told of whatever the level of the rest
        if errors().is_terminal:
            self._bars = loading_bars(errors())
            self._bars.start()
            self._beat.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._bars is not None:
            self._beat.join()
            self._bars.stop()

    @contextmanager
    def watching(self, spark: SparkSession) -> Iterator[None]:
        """Spark has started: the stage ends, and within the block the session is asked how far it is."""
        self.end()
        self._spark = spark
        try:
            yield
        finally:
            self._spark = None

    def begin(self, stage: str, rows: int | None) -> None:
        """A stage begins, that will handle so many rows."""
        self._stage, self._rows, self._started = stage, rows or 0, time.monotonic()
        if self._bars is not None:
            self._task = self._bars.add_task(stage, total=None, told=self._told(0.0))

    def end(self) -> None:
        """It is over."""
        if self._bars is not None and self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
        seconds = max(time.monotonic() - self._started, 0.001)
        rate = f", {number(self._rows)} rows, {self._rows / seconds:,.0f}/s" if self._rows else ""
        log.log(logging.DEBUG if self._bars is not None else logging.INFO, "%s: %.1f s%s", self._stage, seconds, rate)

    def _watch(self) -> None:
        while not self._over.wait(_BEAT):
            spark, bars, task = self._spark, self._bars, self._task
            if spark is None or bars is None or task is None:
                continue
            try:
                share = _share(spark)
            except Exception as error:  # noqa: BLE001  # a session that ends meanwhile; the load says what went wrong
                log.debug("no progress: %s", error)
                continue
            if share is not None and task == self._task:
                bars.update(task, total=1.0, completed=share, told=self._told(share))

    def _told(self, share: float) -> str:
        seconds = time.monotonic() - self._started
        left = seconds * (1 - share) / share if share > 0 else None
        if not self._rows:
            return "" if left is None else f"{left:.0f} s left"
        done = int(self._rows * share)
        return told(done, self._rows, done / max(seconds, 0.001), left, " rows")


def _share(spark: SparkSession) -> float | None:
    """How much is done of the tasks of the jobs that run now; None while none runs."""
    tracker = spark.sparkContext.statusTracker()
    done = total = 0
    for job in tracker.getActiveJobsIds():
        for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
            info = tracker.getStageInfo(stage)
            done += info.numCompletedTasks if info is not None else 0
            total += info.numTasks if info is not None else 0
    return done / total if total else None
