"""A Spark session as these jobs need it: on this machine unless told otherwise, quiet, in UTC."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from compactory.errors import ConfigError

from . import python_workers
from .class_archive import archive_for, java_options, keep
from .interrupt import interruptible
from .jars import DRIVER, find_jars

__all__ = ["SparkOptions", "copied", "session", "starting"]

_JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Environment variable by which spark-submit tells a driver where its JVM is, in every deploy mode."""

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_ZONE: Final = "spark.sql.session.timeZone"
_SHUFFLED: Final = "spark.sql.shuffle.partitions"
_ARCHIVE: Final = "spark.compactory.classes"
"""Property of a session: where the archive of its classes is, or is to be."""
_HERE: Final = "local[*]"
_EARLY: Final = 2
"""Python workers that start before anything is asked of them: further ones start in a fraction of the time."""
_FIRST_COMPILER: Final = "-XX:TieredStopAtLevel=1"
_LATE_OPTIMIZER: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    " -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times the defaults: the optimizing compiler takes on the code that rows go through, not start and planning."""
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": python_workers.__name__,
}
_DEFAULTS: Final = {
    _ZONE: "UTC",
    "spark.sql.ansi.enabled": "true",  # else an expression that fails is null
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",  # LEGACY takes 1.2.24xx for a dd.MM.yyyy
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.codegen.hugeMethodLimit": "8000",  # the JVM compiles no longer method: rules make long ones
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
}
_OF_SQL: Final = {name: value for name, value in _DEFAULTS.items() if name.startswith("spark.sql.")}
"""Settings of a session; the others are those of its JVM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """How Spark runs. ``master`` None: what ``spark-submit`` says, else every core of this machine.

    ``conf`` are properties of Spark, which win over ours; ``jars`` a folder of jars to use instead of fetching any.
    ``postgres_driver``: Spark itself reads from Postgres, and needs its JDBC driver. ``brief``: so little is to be done
    that the JVM's optimizing compiler would take more time than it saves.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    jars: Path | None = None
    postgres_driver: bool = False
    brief: bool = False


@contextmanager
def session(name: str, options: SparkOptions) -> Iterator[SparkSession]:
    """A session of this name, stopped after the block. The first on a machine keeps Spark's classes for quicker starts.

    Raises ConfigError for a time zone other than UTC and naming what has to be installed, Unreachable where a jar can't
    be fetched.
    """
    with starting(name, options) as started:
        yield started()


@contextmanager
def starting(name: str, options: SparkOptions) -> Iterator[Callable[[], SparkSession]]:
    """Yields a function that waits for a session of this name; see :func:`session`, also for what the function raises.

    On this machine the session starts at once, in a thread, so that the caller can do something else meanwhile. On a
    cluster it starts when the function is called: a caller that finds a mistake before takes up no resources there.
    """
    opened = [_opening(name, options)] if _is_local(options) else []

    def started() -> SparkSession:
        if not opened:
            opened.append(_opening(name, options))
        spark = opened[0].result()
        _activate(spark)
        return spark

    try:
        if opened:
            import_module("pandas")  # PySpark does so when its JVM runs, and would keep the start waiting
        yield started
        if opened and (archive := started().conf.get(_ARCHIVE, None)):
            keep(started(), Path(archive))
    finally:
        if opened and opened[0].exception() is None:
            opened[0].result().sparkContext.setLogLevel("OFF")  # tasks that the end interrupts print stack traces
            opened[0].result().stop()


@contextmanager
def copied(spark: SparkSession) -> Iterator[SparkSession]:
    """A copy of a user's session, with our settings and the user's views and functions.

    An interrupt (KeyboardInterrupt) ends the jobs of the copy. Neither session sees settings of the other. Raises
    ConfigError for one of Spark Connect, or that has been stopped.
    """
    java: Any = getattr(spark, "_jsparkSession", None)  # PySpark's newSession has none of the views and functions
    if java is None:
        raise ConfigError("a classic Spark session is needed: Spark Connect is not supported")
    if java.sparkContext().isStopped():
        raise ConfigError("this Spark session has been stopped: make a new one, SparkSession.builder.getOrCreate()")
    copy = SparkSession(spark.sparkContext, java.cloneSession())
    for name, value in _OF_SQL.items():
        copy.conf.set(name, value)
    if str(spark.sparkContext.master).startswith("local") and spark.conf.get(_SHUFFLED, None) is None:
        copy.conf.set(_SHUFFLED, _few())
    with interruptible(copy):
        yield copy


def _activate(spark: SparkSession) -> None:
    """Make the session, which is active in the thread that made it, active here: by that Spark finds data sources."""
    java: Any = spark._jvm  # noqa: SLF001  # PySpark has no other way to it
    sessions: Any = SparkSession._get_j_spark_session_class(java)  # noqa: SLF001
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001


def _opening(name: str, options: SparkOptions) -> Future[SparkSession]:
    """The session that a thread starts. On this machine the thread starts workers after it."""
    local = _is_local(options)
    thread = ThreadPoolExecutor(1, "compactory-spark-start")
    opened = thread.submit(_open, name, options)
    if local:
        thread.submit(_start_workers, opened)
    thread.shutdown(wait=False)
    return opened


def _start_workers(opened: Future[SparkSession]) -> None:
    """Start the Python workers, and what of the JVM serves them, while the caller plans. If this fails, tasks will."""
    with suppress(Exception):
        rows = opened.result().range(0, _EARLY, 1, _EARLY)
        rows.mapInArrow(python_workers.unchanged, "id long").collect()


def _is_local(options: SparkOptions) -> bool:
    return not _is_submitted() and (options.master or _HERE).startswith("local")


def _is_submitted() -> bool:
    return SparkSession.getActiveSession() is not None or _SUBMITTED in os.environ


def _open(name: str, options: SparkOptions) -> SparkSession:
    if (zone := options.conf.get(_ZONE, "UTC")) != "UTC":
        raise ConfigError(
            f"{_ZONE}={zone} would shift times: loads, exports and comparisons are in UTC; remove it, and give times of"
            " another zone with their offset"
        )
    submitted = _is_submitted()
    java = "" if submitted else _check_java()
    builder = SparkSession.builder.appName(name)
    for key, value in _properties(options, java, submitted=submitted).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _properties(options: SparkOptions, java: str, *, submitted: bool) -> dict[str, str]:
    """The properties of a session; ``java`` is the JVM's text about its version.

    A job that is submitted runs where, and with the memory that, its submitter has said.
    """
    if submitted and options.master is None:
        return _OF_SQL | dict(options.conf)
    master = options.master or _HERE
    found = {"spark.master": master, **_DEFAULTS, **_jars(options)}
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        found[_SHUFFLED] = _few()
        java_flags = f"-Dlog4j2.configurationFile=file:{_LOGGING}"
        if (archive := archive_for(java)) is not None:
            found[_ARCHIVE] = str(archive)
            java_flags += f" {java_options(archive)}"
        java_flags += f" {_FIRST_COMPILER if options.brief else _LATE_OPTIMIZER}"
        found |= _LOCAL | {"spark.driver.defaultJavaOptions": java_flags}
    return found | dict(options.conf)


def _few() -> str:
    """How many partitions this machine has after a join or a grouping."""
    return str(max(8, 4 * (os.cpu_count() or 1)))


def _jars(options: SparkOptions) -> dict[str, str]:
    found = find_jars(options.jars, fetch=options.postgres_driver)
    if found:
        return {"spark.jars": ",".join(map(str, found))}
    return {"spark.jars.packages": DRIVER} if options.postgres_driver else {}


def _check_java() -> str:
    """Java's text about its version. Raises ConfigError, one line, where PySpark would print a page."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    remedy = f"install a Java {_JAVA} runtime (Debian: apt-get install openjdk-{_JAVA}-jre-headless)"
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise ConfigError(f"Spark needs Java {_JAVA} or newer, and there is none {where}: {remedy}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < _JAVA:
        found = said.partition("\n")[0].strip() or "one that does not start"
        raise ConfigError(f"Spark needs Java {_JAVA} or newer, and {java} is {found}: {remedy}, or set JAVA_HOME")
    return said
