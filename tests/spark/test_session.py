"""What a Spark session is told, before any JVM starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactory.errors import ConfigError
from compactory_connectors.spark.session import SparkOptions, _properties, configured, session


def test_a_time_zone_that_would_shift_times_is_refused() -> None:
    options = SparkOptions(conf={"spark.sql.session.timeZone": "Asia/Karachi"})
    with pytest.raises(ConfigError, match=r"timeZone=Asia/Karachi would shift times"), session("zone", options):
        pass


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


def test_the_docs_name_the_version_that_tests_run() -> None:
    root = Path(__file__).parents[2]
    found = re.search(r"^pyspark==(\S+)", (root / "constraints.txt").read_text(), re.MULTILINE)
    assert found is not None
    page = (root / "docs" / "spark-cluster.md").read_text()
    assert f"apache/spark:{found[1]}" in page
    assert f"tests run {found[1]}" in page
    series = found[1].rpartition(".")[0]
    assert f'"pyspark>={series},<' in (root / "pyproject.toml").read_text()
