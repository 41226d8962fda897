"""The jars that Spark's JVM needs beside its own: where they are, or how they are come by."""

from __future__ import annotations

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from compactory.errors import ConfigError, Unreachable

__all__ = ["COORDINATES", "JARS_VARIABLE", "find_jars"]

JARS_VARIABLE: Final = "COMPACTORY_SPARK_JARS"
"""Environment variable: a folder of jars to use instead of fetching any."""

COORDINATES: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
    "org.postgresql:postgresql:42.7.7",
)
"""What is needed, as ``group:artifact:version``; ``pom.xml`` beside this module says the same to Maven."""

_POM: Final = Path(__file__).with_name("pom.xml")


def find_jars(given: Path | None = None) -> list[Path]:
    """The jars of ``given``, of the folder that the environment names, or fetched by Maven once and kept.

    Empty where neither is there: Spark resolves :data:`COORDINATES` itself then. Raises ConfigError for a folder
    without jars, Unreachable where Maven can't fetch them.
    """
    named = given or (Path(os.environ[JARS_VARIABLE]) if os.environ.get(JARS_VARIABLE) else None)
    if named is not None:
        found = sorted(named.glob("*.jar"))
        if not found:
            raise ConfigError(f"no jar is in {named}; it has to hold those of {', '.join(COORDINATES)}")
        return found
    if shutil.which("mvn") is None:
        return []
    folder = _cache() / sha256(_POM.read_bytes()).hexdigest()[:12]
    if not folder.exists():
        _fetch(folder)
    return sorted(folder.glob("*.jar"))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "compactory" / "spark-jars"


def _fetch(folder: Path) -> None:
    """Fetch into a folder beside it first: one that is there is whole, whoever else fetches at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as beside:
        fetched = Path(beside) / "jars"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={fetched}"]
        command = ["mvn", "-q", "-B", "-f", str(_POM), *goal]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = " ".join((done.stdout + done.stderr).split())[-600:]
            raise Unreachable("Maven", f"Maven could not fetch the jars that Spark needs: {said}")
        try:
            fetched.rename(folder)
        except OSError:
            if not folder.exists():
                raise
