"""Spark's classes kept for the next start of a JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compactory_connectors.spark.class_archive import ARCHIVE_VARIABLE, archive_for, java_options
from tests.spark.conftest import needs_spark

JAVA = 'openjdk version "17.0.15"\nOpenJDK 64-Bit Server VM'
CHILD = """
from pathlib import Path
from compactory_connectors.spark.session import session
from tests.spark.conftest import OPTIONS

with session("child", OPTIONS) as spark:
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    print(".jsa" in Path(f"/proc/{jvm}/maps").read_text().replace("classes.jsa", ""))
"""


def test_an_archive_belongs_to_a_java_and_a_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARCHIVE_VARIABLE, str(tmp_path))
    archive = archive_for(JAVA)
    assert archive is not None
    assert archive == archive_for(JAVA)
    assert archive != archive_for(JAVA.replace("15", "16"))
    assert archive_for("Eclipse OpenJ9 VM") is None, "whose JVM has other options"
    assert java_options(archive) == "-XX:+RecordDynamicDumpInfo -Xlog:cds*=off"
    assert java_options(Path("/proc/none") / archive.name) == "", "where none can be written, none is collected"
    archive.write_bytes(b"")
    assert f"-XX:SharedArchiveFile={archive}" in java_options(archive)
    monkeypatch.setenv(ARCHIVE_VARIABLE, "")
    assert archive_for(JAVA) is None


@pytest.mark.proof
def test_the_second_start_uses_what_the_first_has_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no archive of this JVM is passed over without a word."""
    needs_spark()
    monkeypatch.setenv(ARCHIVE_VARIABLE, str(tmp_path))
    runs = [subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True) for _ in range(2)]
    assert [run.stdout for run in runs] == ["False\n", "True\n"]
    assert all("dump" not in run.stderr and "cds" not in run.stderr for run in runs)
    [archive] = tmp_path.iterdir()
    archive.chmod(0o600)
    with archive.open("r+b") as other:
        other.write(bytes(64))
    foreign = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert (foreign.stdout, "cds" in foreign.stderr) == ("False\n", False)
