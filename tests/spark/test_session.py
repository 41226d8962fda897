"""What a Spark session is told, before any JVM starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from compactory.errors import ConfigError, Unreachable
from compactory_connectors.spark import register
from compactory_connectors.spark.jars import JARS_VARIABLE
from compactory_connectors.spark.record_batch import Batches
from compactory_connectors.spark.session import SparkOptions, _properties, copied, session, starting
from compactory_connectors.spark.sources.source_files import are_small
from tests.spark.conftest import needs_spark


def test_a_time_zone_that_would_shift_times_is_refused() -> None:
    options = SparkOptions(conf={"spark.sql.session.timeZone": "Asia/Karachi"})
    with pytest.raises(ConfigError, match=r"timeZone=Asia/Karachi would shift times"), session("zone", options):
        pass


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Maven that reaches nothing, and has kept nothing."""
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho no route to host; exit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(JARS_VARIABLE, raising=False)


@pytest.mark.usefixtures("no_network")
def test_only_a_load_from_postgres_needs_a_jar() -> None:
    told = _properties(SparkOptions(), "", submitted=False)
    assert not [name for name in told if name.startswith("spark.jars")]
    with pytest.raises(Unreachable, match="the driver of this load: no route to host"):
        _properties(SparkOptions(postgres_driver=True), "", submitted=False)


def test_small_files_of_this_machine_are_told_from_others(tmp_path: Path) -> None:
    assert not are_small([str(tmp_path)]), "no file is there"
    (tmp_path / "link.csv").symlink_to(tmp_path / "nowhere")
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(bytes(3 << 20))
    assert are_small([f"{tmp_path}/*.csv"])
    assert are_small([str(tmp_path)])
    assert not are_small([str(tmp_path), str(tmp_path / "a.csv")])
    assert not are_small(["hdfs://cluster/a.csv"])
    assert not are_small(["jdbc:postgresql://localhost/reference"])


def test_only_a_brief_job_does_without_the_optimizing_compiler() -> None:
    told = [_properties(SparkOptions(brief=brief), "", submitted=False) for brief in (True, False)]
    assert ["TieredStopAtLevel" in each["spark.driver.defaultJavaOptions"] for each in told] == [True, False]


def test_python_workers_find_no_pandas(spark: SparkSession) -> None:
    """PyArrow would import it in each of them, for the first value of Python that it converts."""

    def found(batches: Batches) -> Batches:
        for _ in batches:
            yield pa.record_batch([pa.array(["pandas" in sys.modules])], names=["found"])

    assert spark.range(0, 1, 1, 1).mapInArrow(found, "found boolean").collect() == [(False,)]


CHILD = """
from pyspark.sql import SparkSession
from compactory.errors import ConfigError
from compactory_connectors.spark.session import copied, starting
from tests.spark.conftest import OPTIONS

try:
    with starting("child", OPTIONS) as started:
        raise LookupError
except LookupError:
    pass
with starting("child", OPTIONS) as started:
    spark = started()
    print(SparkSession.getActiveSession() is not None, started() is spark, spark.range(3).count())
try:
    with copied(spark):
        print("copied")
except ConfigError as error:
    print(error)
"""


@pytest.mark.proof
def test_a_start_that_nobody_waits_for_is_ended_and_the_next_is_active_here() -> None:
    needs_spark()
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    [lives, stopped] = done.stdout.splitlines()
    assert lives == "True True 3"
    assert stopped.startswith("this Spark session has been stopped: make a new one")


def test_a_session_of_spark_connect_is_refused() -> None:
    connected: Any = object()
    with pytest.raises(ConfigError, match="a classic Spark session is needed"), copied(connected):
        pass


def test_workers_without_compactory_are_told_before_the_first_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a virtual environment that was not activated: PySpark's workers run the python3 on PATH."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    for interpreter in (str(other), "python-that-is-not-there"):
        monkeypatch.setattr(spark.sparkContext, "pythonExec", interpreter)
        with pytest.raises(ConfigError, match=f"run '{interpreter}', which can't import .* set PYSPARK_PYTHON"):
            register(spark)


def test_what_keeps_spark_from_starting_is_told_to_the_one_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/none")
    with pytest.raises(ConfigError, match="JAVA_HOME=/none"), starting("none", SparkOptions()) as started:
        started()
