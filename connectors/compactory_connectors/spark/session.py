"""A Spark session as these jobs need it: on this machine unless told otherwise, quiet, in UTC."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from compactory.errors import ConfigError

from .jars import DRIVER, find_jars
from .quiet_start import quiet_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkOptions", "open_session"]

_JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Environment variable by which spark-submit tells a driver where its JVM is, in every deploy mode."""

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_ZONE: Final = "spark.sql.session.timeZone"
_LOCAL: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_DEFAULTS: Final = {
    _ZONE: "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.codegen.hugeMethodLimit": "8000",  # the JVM compiles no longer method: rules make long ones
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """How Spark runs. ``master`` None: what ``spark-submit`` says, else every core of this machine.

    ``conf`` are properties of Spark, which win over ours; ``jars`` a folder of jars to use instead of fetching any.
    ``postgres_driver``: Spark itself reads from Postgres, and needs its JDBC driver.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    jars: Path | None = None
    postgres_driver: bool = False


def open_session(name: str, options: SparkOptions) -> SparkSession:
    """A session of this name; whoever gets it stops it.

    Raises ConfigError for a time zone other than UTC and naming what has to be installed, Unreachable where a jar can't
    be fetched.
    """
    if (zone := options.conf.get(_ZONE, "UTC")) != "UTC":
        raise ConfigError(
            f"{_ZONE}={zone} would shift times: loads, exports and comparisons are in UTC; remove it, and give times of"
            " another zone with their offset"
        )
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError("Spark jobs need PySpark: pip install 'compactory[spark]'") from None
    submitted = SparkSession.getActiveSession() is not None or _SUBMITTED in os.environ
    if not submitted:
        _check_java()
    builder = SparkSession.builder.appName(name)
    for key, value in _properties(options, submitted=submitted).items():
        builder = builder.config(key, value)
    if submitted:
        return builder.getOrCreate()
    with quiet_start():
        return builder.getOrCreate()


def _properties(options: SparkOptions, *, submitted: bool) -> dict[str, str]:
    """What is set for a session; who submits a job has said where and with which memory it runs."""
    if submitted and options.master is None:
        names = [name for name in _DEFAULTS if name.startswith("spark.sql.")]
        return {name: _DEFAULTS[name] for name in names} | dict(options.conf)
    master = options.master or "local[*]"
    found = {"spark.master": master, **_DEFAULTS, **_jars(options)}
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        found["spark.sql.shuffle.partitions"] = str(max(8, 4 * (os.cpu_count() or 1)))
        found |= _LOCAL | {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile=file:{_LOGGING}"}
    return found | dict(options.conf)


def _jars(options: SparkOptions) -> dict[str, str]:
    found = find_jars(options.jars, fetch=options.postgres_driver)
    if found:
        return {"spark.jars": ",".join(map(str, found))}
    return {"spark.jars.packages": DRIVER} if options.postgres_driver else {}


def _check_java() -> None:
    """Say what is missing in one line, where PySpark would print a page."""
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
