"""What a Spark session is told, before any JVM starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactory.errors import ConfigError, Unreachable
from compactory_connectors.spark.jars import JARS_VARIABLE
from compactory_connectors.spark.session import SparkOptions, _properties, configured, session


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
    told = _properties(SparkOptions(), is_submitted=False)
    assert not [name for name in told if name.startswith("spark.jars")]
    with pytest.raises(Unreachable, match="the driver of this load: no route to host"):
        _properties(SparkOptions(postgres_driver=True), is_submitted=False)


def test_settings_of_a_users_session_are_back_after_a_load(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        with configured(spark):
            assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
        assert spark.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_master_may_be_a_spark_connect_server() -> None:
    properties = _properties(SparkOptions(master="sc://spark.test:15002"), is_submitted=False)
    assert properties["spark.remote"] == "sc://spark.test:15002"
    assert not {"spark.master", "spark.driver.memory"} & properties.keys(), "they are the server's"


def test_what_keeps_spark_from_starting_is_told_to_the_one_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/none")
    with pytest.raises(ConfigError, match="JAVA_HOME=/none"):
        _properties(SparkOptions(), is_submitted=False)
