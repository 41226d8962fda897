"""Progress of a job on Spark: a bar on a terminal, else a log line after each stage."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from compactory_connectors.spark.stages import Stages

from .loading_bars import Bar, Bars, rate_text
from .terminal import error_output, number

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StageBars"]

log = logging.getLogger("compactory.spark")

_BEAT = 0.5  # seconds between two reads of Spark's tasks


@dataclass(frozen=True, slots=True)
class _Stage:
    """A running stage and its number of rows; 0 if the number is not known."""

    name: str
    rows: int
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.began, 0.001)

    def bar(self, share: float | None) -> Bar:
        """Return the bar at this share of the work; None if Spark does not report a share."""
        return Bar(self.name, share or 0.0, 0 if share is None else 1, self._rest_text(share or 0.0))

    def _rest_text(self, share: float) -> str:
        seconds_left = self.seconds * (1 - share) / share if share > 0 else None
        if not self.rows:
            return "" if seconds_left is None else f"{seconds_left:.0f} s left"
        completed = int(self.rows * share)
        return rate_text(completed, self.rows, completed / self.seconds, seconds_left, " rows")


class StageBars(Stages):
    """Shows one stage at a time while its block runs. Its own thread asks Spark and draws."""

    def __init__(self) -> None:
        self._stage: _Stage | None = None
        self._spark: SparkSession | None = None
        self._drawn = error_output().is_terminal
        self._over = Event()
        self._drawing = Thread(target=self._draw, name="compactory-spark-progress", daemon=True)

    def __enter__(self) -> Self:
        log.setLevel(logging.INFO)  # shown at every log level: a job takes minutes
        if self._drawn:
            self._drawing.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._drawn:
            self._drawing.join()

    @contextmanager
    def watching(self, spark: SparkSession) -> Iterator[None]:
        """End the stage, and read progress from this session while the block runs."""
        self.end()
        self._spark = spark
        try:
            yield
        finally:
            self._spark = None

    def begin(self, stage: str, rows: int | None) -> None:
        """Begin a stage with this number of rows."""
        self._stage = _Stage(stage, rows or 0)

    def end(self) -> None:
        """End the stage."""
        stage, self._stage = self._stage, None
        assert stage is not None
        rate = f", {number(stage.rows)} rows, {stage.rows / stage.seconds:,.0f}/s" if stage.rows else ""
        log.log(logging.DEBUG if self._drawn else logging.INFO, "%s: %.1f s%s", stage.name, stage.seconds, rate)

    def _draw(self) -> None:
        with Bars() as bars:
            while not self._over.is_set():
                stage = self._stage
                bars.show({} if stage is None else {stage: stage.bar(_share(self._spark))})
                self._over.wait(_BEAT)


def _share(spark: SparkSession | None) -> float | None:
    """Return the finished share of the running jobs' tasks; None while no job runs."""
    if spark is None:
        return None
    try:
        tracker = spark.sparkContext.statusTracker()
        completed = total = 0
        for job in tracker.getActiveJobsIds():
            for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
                info = tracker.getStageInfo(stage)
                completed += info.numCompletedTasks if info is not None else 0
                total += info.numTasks if info is not None else 0
    except Exception as error:  # noqa: BLE001  # a session that ends meanwhile; the load says what went wrong
        log.debug("no progress: %s", error)
        return None
    return completed / total if total else None
