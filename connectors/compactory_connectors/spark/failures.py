"""Errors within Spark, as one line of ours: PySpark's own errors are pages of two languages' stacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import (  # type: ignore[import-untyped]
    Py4JError,
    Py4JJavaError,
    Py4JNetworkError,
)
from pyspark.errors import PySparkException

from compactory.errors import CompactoryError, ConfigError, Unreachable

__all__ = ["spark_failures"]

_AWAY: Final = {"ConnectException", "UnknownHostException", "NoRouteToHostException", "SocketTimeoutException"}
"""Java's exceptions where a server is not reached."""
_NOT_CONNECTED: Final = "08"
"""SQLSTATEs of connections that fail."""
_MEMORY: Final = (
    "Spark ran out of memory: give it more (--conf spark.driver.memory=4g, or spark.executor.memory) or more"
)
_LONGEST: Final = 600
_OURS: Final = re.compile(r"^compactory\.errors\.(\w+): (.*)$", re.MULTILINE)
"""How a task's traceback shows an error of ours."""
_TASKS: Final = "a server that Spark's tasks ask"
_NO_PATH: Final = {"UnsupportedFileSystemException", "URISyntaxException"}
"""Java's exceptions for paths that name no file system."""


@contextmanager
def spark_failures() -> Iterator[None]:
    """Raise what Spark fails with within the block as Unreachable or CompactoryError; ours pass as they are."""
    try:
        yield
    except Py4JJavaError as error:
        raise _of_java(error.java_exception) from error
    except PySparkException as error:
        raise _of_text(str(error)) from error
    except (Py4JNetworkError, ConnectionError) as error:
        gone = "Spark's JVM is gone: was it killed, or out of memory? Give it more: --conf spark.driver.memory=4g"
        raise CompactoryError(gone) from error
    except Py4JError as error:
        raise _of_text(str(error)) from error


def _of_java(thrown: Any) -> CompactoryError:
    """The error that the innermost of a chain of exceptions stands for."""
    while (cause := thrown.getCause()) is not None and cause != thrown:
        thrown = cause
    kind = str(thrown.getClass().getSimpleName())
    said = str(thrown.getMessage() or kind)
    if kind == "PSQLException" and str(thrown.getSQLState() or "").startswith(_NOT_CONNECTED):
        return Unreachable("Postgres", said.partition("\n")[0])
    if kind == "ClassNotFoundException":
        return ConfigError(f"Spark lacks the Java class {said}: name a folder with its jar by --jars")
    if kind in _AWAY:
        return Unreachable("a server that Spark asks", f"{kind}: {said.partition(chr(10))[0]}")
    if kind in _NO_PATH:
        return ConfigError(f"a path can't be used: {said.partition(chr(10))[0]}")
    return _of_text(said, kind)


def _of_text(said: str, kind: str = "") -> CompactoryError:
    if "OutOfMemoryError" in kind + said or "Java heap space" in said:
        return CompactoryError(_MEMORY)
    if ours := _OURS.findall(said):
        name, text = ours[-1]
        if name == "Unreachable":
            return Unreachable(_TASKS, text)
        return ConfigError(text) if name == "ConfigError" else CompactoryError(text)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    trace = any(line.startswith("Traceback") for line in lines)
    text = lines[-1] if trace else " ".join(lines)  # a Python worker's error ends with what it says
    if lost := next((line for line in lines if line.startswith("psycopg.")), None):
        return Unreachable("Postgres", f"Spark's tasks lost Postgres: {lost[:_LONGEST]}")
    return CompactoryError(f"Spark failed: {text[:_LONGEST]}")
