"""Spark's classes as a JVM has read and verified them, kept for the next start, which takes half the time then.

The JVM checks an archive against its own version and every jar, and starts without one that does not fit.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

__all__ = ["ARCHIVE_VARIABLE", "archive_for", "java_options", "keep"]

log = logging.getLogger("compactory.spark")

ARCHIVE_VARIABLE: Final = "COMPACTORY_SPARK_CLASSES"
"""Environment variable: the folder of archives in place of the user's cache; empty: no archive is used or written."""

_SPACE: Final = 1 << 30
"""Bytes that have to be free on the disk: a JVM that fails to write an archive ends."""


def archive_for(java: str) -> Path | None:
    """The archive for a JVM that says this of its version, and PySpark's jars; it need not exist. None: use none."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compactory" / "spark-classes"
    folder = os.environ.get(ARCHIVE_VARIABLE, str(base))
    package = find_spec("pyspark")
    if not folder or "Server VM" not in java or package is None or package.origin is None:
        return None
    jars = sorted((Path(package.origin).parent / "jars").glob("*.jar"))
    seen = [java, *(f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars)]
    return Path(folder) / f"{sha256(chr(10).join(seen).encode()).hexdigest()[:16]}.jsa"


def java_options(archive: Path) -> str:
    """Options that let a JVM use the archive, or else collect the classes for :func:`keep` where it can write."""
    if archive.exists():
        return f"-XX:SharedArchiveFile={archive} -Xlog:cds*=off -Xlog:class+path=off"
    with suppress(OSError):
        archive.parent.mkdir(parents=True, exist_ok=True)
        if os.access(archive.parent, os.W_OK) and disk_usage(archive.parent).free >= _SPACE:
            return "-XX:+RecordDynamicDumpInfo -Xlog:cds*=off"
    return ""


def keep(spark: SparkSession, archive: Path) -> None:
    """Write the classes that this session has collected, unless the archive exists: some seconds, 170 MB.

    The archive gets its name when it is whole and on disk: the JVM looks at the beginning alone, and a part of one
    would end it. Nothing is written where the JVM has collected none, or has no such command.
    """
    if archive.exists():
        return
    log.info("keeping Spark's classes in %s: the next start takes half the time", archive.parent)
    with suppress(OSError, Py4JError), TemporaryDirectory(dir=archive.parent) as beside:
        written = Path(beside) / archive.name
        _dump(spark, written)
        with written.open("rb") as whole:
            os.fsync(whole.fileno())
        written.replace(archive)


def _dump(spark: SparkSession, file: Path) -> None:
    """Do the same as ``jcmd PID VM.cds dynamic_dump FILE``, which a runtime without development tools lacks."""
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001  # PySpark has no other way to it
    jvm = gateway.jvm

    def array(kind: Any, *values: Any) -> Any:
        made = gateway.new_array(kind, len(values))
        for number, value in enumerate(values):
            made[number] = value
        return made

    jvm.java.lang.System.setOut(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))  # it says so
    text, thing = jvm.java.lang.String, jvm.java.lang.Object
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    command = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    words, signature = array(text, "dynamic_dump", str(file)), array(text, "[Ljava.lang.String;")
    methods = jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethods()
    [invoke] = [method for method in methods if method.getName() == "invoke"]  # py4j can't call the server's own class
    invoke.invoke(server, array(thing, command, "vmCds", array(thing, words), signature))
