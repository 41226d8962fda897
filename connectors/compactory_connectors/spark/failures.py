"""Errors within Spark, as one line of ours: PySpark's own errors are pages of two languages' stacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from compactory.errors import CompactoryError, ConfigError, Unreachable

__all__ = ["misfits", "spark_failures"]

_AWAY: Final = {"ConnectException", "UnknownHostException", "NoRouteToHostException", "SocketTimeoutException"}
"""Java's exceptions where a server is not reached."""
_MEMORY: Final = (
    "Spark ran out of memory: give it more (--conf spark.driver.memory=4g, or spark.executor.memory) or more"
)
_GONE: Final = "Spark's JVM is gone: was it killed, or out of memory? Give it more: --conf spark.driver.memory=4g"
_FULL: Final = "No space left on device"
_ROOM: Final = (
    "a disk is full: make room where the output goes, or name a larger folder for Spark's temporary files by --conf"
    " spark.local.dir=DIR"
)
_NO_MODULE: Final = "No module named 'compactory"
_OTHER_PYTHON: Final = (
    "Spark's workers run a Python that has no Compactory: set PYSPARK_PYTHON to one that has it, before the session"
    " starts; otherwise it is the python3 on PATH"
)
_LONGEST: Final = 600
_OURS: Final = re.compile(r"^compactory\.errors\.(\w+): (.*)$", re.MULTILINE)
"""How a task's traceback shows an error of ours."""
_TASKS: Final = "a server that Spark's tasks ask"
_NO_PATH: Final = {"UnsupportedFileSystemException", "URISyntaxException"}
"""Java's exceptions for paths that name no file system."""
_FILE: Final = re.compile(r"Encountered error while reading file (\S+)\.\s")
"""How Spark says which file it could not read on."""
_DENIED: Final = re.compile(r"permission denied", re.IGNORECASE)


class _SparkFailed(CompactoryError):
    """A failure of a job that none of our errors stands for; ``reason`` is Spark's text."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Spark failed: {reason}")
        self.reason = reason.rstrip(".")


@contextmanager
def misfits(subject: str, remedy: str) -> Iterator[None]:
    """Raise what Spark fails with within the block, which does nothing but look at ``subject``, as ConfigError.

    What :func:`spark_failures` knows, such as a server that is not reached, is raised as that; lacking rights on a file
    are no mistake of the arguments.
    """
    try:
        with spark_failures():
            yield
    except _SparkFailed as error:
        if _DENIED.search(error.reason):
            raise
        raise ConfigError(f"{subject}: {error.reason}; {remedy}") from error


@contextmanager
def spark_failures() -> Iterator[None]:
    """Raise what Spark fails with within the block as Unreachable or CompactoryError; ours pass as they are.

    PySpark's own log of errors, a page of Java's stack for each, is off within the block.
    """
    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except PySparkException as error:
        raise _of_text(str(error)) from error
    except ConnectionError as error:
        raise CompactoryError(_GONE) from error
    except Exception as error:
        failure = _of_py4j(error)
        if failure is None:
            raise
        raise failure from error
    finally:
        log.disabled = was_disabled


def _of_py4j(error: Any) -> CompactoryError | None:
    """Return the failure behind an exception of py4j, None for others. A client of Spark Connect has no py4j."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "Py4JJavaError" in names:
        return _of_java(error.java_exception)
    if "Py4JNetworkError" in names:
        return CompactoryError(_GONE)
    return _of_text(str(error)) if "Py4JError" in names else None


def _of_java(thrown: Any) -> CompactoryError:
    """The error that the innermost of a chain of exceptions stands for."""
    file = _FILE.search(str(thrown.getMessage()))
    while (cause := thrown.getCause()) is not None and cause != thrown:
        thrown = cause
        file = file or _FILE.search(str(thrown.getMessage()))
    kind = str(thrown.getClass().getSimpleName())
    message = str(thrown.getMessage() or kind)
    if kind == "ClassNotFoundException":
        name = message.removeprefix("Class ").removesuffix(" not found")  # Hadoop says it so
        return ConfigError(f"Spark lacks the Java class {name}: name its jar by --conf spark.jars=FILE")
    if kind in _AWAY:
        return Unreachable(
            "a server that Spark asks", f"Spark reaches no server: {kind}: {message.partition(chr(10))[0]}"
        )
    if kind in _NO_PATH:
        return ConfigError(f"a path can't be used: {message.partition(chr(10))[0]}")
    failure = _of_text(message, kind)
    if file is not None and isinstance(failure, _SparkFailed) and not _DENIED.search(failure.reason):
        path = re.sub(r"\Afile:/+", "/", file[1])
        return ConfigError(f"{path}: can't be read: {failure.reason}; is it whole? write or copy it again")
    return failure


def _of_text(message: str, kind: str = "") -> CompactoryError:
    if "OutOfMemoryError" in kind + message or "Java heap space" in message:
        return CompactoryError(_MEMORY)
    if ours := _OURS.findall(message):
        name, text = ours[-1]
        if name == "Unreachable":
            return Unreachable(_TASKS, text)
        return ConfigError(text) if name == "ConfigError" else CompactoryError(text)
    if _NO_MODULE in message:
        return ConfigError(_OTHER_PYTHON)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    trace = any(line.startswith("Traceback") for line in lines)
    text = lines[-1] if trace else " ".join(lines)  # a Python worker's error ends with what it says
    if lost := next((line for line in lines if line.startswith("psycopg.")), None):
        return Unreachable("Postgres", f"Spark's tasks lost Postgres: {lost[:_LONGEST]}")
    return CompactoryError(_ROOM) if _FULL in message else _SparkFailed(text[:_LONGEST])
