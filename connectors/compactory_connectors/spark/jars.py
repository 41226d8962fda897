"""The jars that Spark's JVM needs beside its own: the Postgres driver where it reads from Postgres, and a user's."""

from __future__ import annotations

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from compactory.errors import ConfigError, Unreachable

__all__ = ["DRIVER", "JARS_VARIABLE", "find_jars"]

JARS_VARIABLE: Final = "COMPACTORY_SPARK_JARS"
"""Environment variable: a folder of jars to use instead of fetching any."""

DRIVER: Final = "org.postgresql:postgresql:42.7.7"
"""The driver for loads from Postgres by JDBC, as ``group:artifact:version``; ``pom.xml`` says the same to Maven."""

_POM: Final = Path(__file__).with_name("pom.xml")


def find_jars(given: Path | None = None, *, fetch: bool = True) -> list[Path]:
    """The jars of ``given``, of the folder that the environment names, or else the driver, fetched by Maven once.

    Without ``fetch`` only those of a folder. Empty where Maven is not there: Spark resolves :data:`DRIVER` itself then.
    Raises ConfigError for a folder without jars, Unreachable where Maven can't fetch the driver.
    """
    named = given or (Path(os.environ[JARS_VARIABLE]) if os.environ.get(JARS_VARIABLE) else None)
    if named is not None:
        found = sorted(named.glob("*.jar"))
        if not found:
            raise ConfigError(f"no jar is in {named}: put the JDBC drivers there that a load needs")
        return found
    if not fetch or shutil.which("mvn") is None:
        return []
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "compactory" / "spark-jars" / sha256(_POM.read_bytes()).hexdigest()[:12]
    if not folder.exists():
        _fetch(folder)
    return sorted(folder.glob("*.jar"))


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
            raise Unreachable("Maven", f"Maven could not fetch {DRIVER}, the driver of this load: {said}")
        try:
            fetched.rename(folder)
        except OSError:
            if not folder.exists():
                raise
