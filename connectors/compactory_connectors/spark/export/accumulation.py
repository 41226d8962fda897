"""A tally that the tasks of a job add to, by way of Spark's accumulators."""

from __future__ import annotations

from pyspark import Accumulator
from pyspark.sql import SparkSession

from .tally import Tally

__all__ = ["Adding", "tally_of"]


class Adding:
    """Adds tallies as Spark's ``AccumulatorParam`` does, which can't be named without importing PySpark."""

    def zero(self, value: Tally) -> Tally:
        """Nothing counted."""
        del value
        return Tally()

    def addInPlace(self, value1: Tally, value2: Tally) -> Tally:  # noqa: N802 (Spark's name)
        """Both."""
        return value1 + value2


def tally_of(spark: SparkSession) -> Accumulator[Tally]:
    """A new tally: tasks call ``add``, the driver asks for ``value``."""
    return spark.sparkContext.accumulator(Tally(), Adding())  # type: ignore[arg-type]
