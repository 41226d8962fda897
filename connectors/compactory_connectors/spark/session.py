"""The Spark session of a command: on this machine unless a master is named, quiet, in UTC."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from compactory.errors import ConfigError

from .interrupt import interruptible

__all__ = ["SparkOptions", "configured", "session"]

_JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Environment variable that spark-submit sets for a driver."""

_CONNECT: Final = "sc://"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_ZONE: Final = "spark.sql.session.timeZone"
_SQL: Final = {
    _ZONE: "UTC",
    "spark.sql.ansi.enabled": "true",  # without it an expression that fails is null
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",  # LEGACY takes 1.2.24xx for a dd.MM.yyyy
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.codegen.hugeMethodLimit": "8000",  # the JVM compiles no longer method, and rules make long ones
}
_RESTORED: Final = (*_SQL, "spark.sql.files.minPartitionNum", "spark.sql.legacy.javaCharsets")
_JVM: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Options of a session. ``master`` None: as ``spark-submit`` says, else every core of this machine.

    ``master`` may be a Spark Connect server, ``sc://HOST:PORT``. ``conf`` are properties of Spark, which win over the
    defaults.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def session(name: str, options: SparkOptions) -> Iterator[SparkSession]:
    """A session of this name, stopped after the block.

    Raises ConfigError for a time zone other than UTC, and where Java is not installed.
    """
    if (zone := options.conf.get(_ZONE, "UTC")) != "UTC":
        raise ConfigError(
            f"{_ZONE}={zone} would shift times: loads, exports and comparisons are in UTC; remove it, and give times of"
            " another zone with their offset"
        )
    is_submitted = SparkSession.getActiveSession() is not None or _SUBMITTED in os.environ
    builder = SparkSession.builder.appName(name)
    for key, value in _properties(options, is_submitted=is_submitted).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def configured(spark: SparkSession) -> Iterator[None]:
    """Give a user's session our settings within the block; an interrupt (KeyboardInterrupt) ends the session's jobs.

    The former settings come back after the block. Until then other threads of the session meet ours.
    """
    former = {name: spark.conf.get(name, None) for name in _RESTORED}
    try:
        for name, value in _SQL.items():
            spark.conf.set(name, value)
        with interruptible(spark):
            yield
    finally:
        for name, setting in former.items():
            if setting is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, setting)


def _properties(options: SparkOptions, *, is_submitted: bool) -> dict[str, str]:
    """Return the properties of a session. Raises ConfigError where this machine can't run it.

    A submitted job runs where, and with the memory that, its submitter has said.
    """
    master = options.master or "local[*]"
    if is_submitted and options.master is None:
        return _SQL | dict(options.conf)
    if master.startswith(_CONNECT):
        return {"spark.remote": master} | _SQL | dict(options.conf)
    properties = {"spark.master": master, **_SQL, **_JVM}
    if not is_submitted:
        _check_java()
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        properties |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile=file:{_LOGGING}",
            "spark.sql.shuffle.partitions": str(max(8, 4 * (os.cpu_count() or 1))),
        }
    return properties | dict(options.conf)


def _check_java() -> None:
    """Raise ConfigError, one line, where PySpark would print a page."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    remedy = f"install a Java {_JAVA} runtime (Debian: apt-get install openjdk-{_JAVA}-jre-headless)"
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise ConfigError(f"Spark needs Java {_JAVA} or newer, and there is none {where}: {remedy}")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < _JAVA:
        actual = output.partition("\n")[0].strip() or "one that does not start"
        raise ConfigError(f"Spark needs Java {_JAVA} or newer, and {java} is {actual}: {remedy}, or set JAVA_HOME")
