"""Makes the data source known to a session."""

from __future__ import annotations

import subprocess
import sys

from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make ``spark.read``, ``spark.readStream`` and ``df.write`` know ``format("compactory")`` in this session.

    Turns on the filters that Spark hands to Python data sources. Raises ConfigError for a Spark older than 4.2, for
    Spark Connect, which has no such sessions, and where Spark's Python workers run an interpreter without Compactory.
    """
    from compactory.errors import ConfigError  # Spark's processes import this module as well, for a name

    if not hasattr(spark, "_jsparkSession"):
        raise ConfigError("the data source needs a classic Spark session: Spark Connect is not supported")
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 2):
        raise ConfigError(f"the data source needs Spark 4.2 or newer, and this is {spark.version}")
    _check_workers(spark.sparkContext.pythonExec)
    from .datasource.source import CompactorySource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(CompactorySource)


def _check_workers(interpreter: str) -> None:
    """Raise ConfigError where the interpreter of Spark's Python workers can't import Compactory.

    Spark plans a read in such a worker beside the driver, so the check holds for a cluster too as far as the driver's
    machine goes. ``interpreter`` is a name on PATH or a path.
    """
    from compactory.errors import ConfigError

    if interpreter == sys.executable:
        return
    command = [interpreter, "-c", "import compactory_connectors"]
    try:
        is_usable = subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    except OSError:
        is_usable = False
    if not is_usable:
        raise ConfigError(
            f"Spark's Python workers run {interpreter!r}, which can't import compactory_connectors: set PYSPARK_PYTHON"
            f" to {sys.executable} before the session starts (os.environ['PYSPARK_PYTHON'] = sys.executable)"
        )
