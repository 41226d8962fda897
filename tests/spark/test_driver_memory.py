"""The driver's memory does not grow with the rows of a load, and hardly with its files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from compactory_connectors.schema import install
from tests.spark.conftest import needs_spark
from tests.spark.test_cluster import ENVIRONMENT

ROWS_MB = 16
"""A million rows in the driver would be many times as much: a row of Spark takes 100 bytes at least."""
FILES_MB = 32
"""Spark lists the files in the driver, which takes some KB for each."""


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_the_driver_holds_no_rows(database: str, tmp_path: Path) -> None:
    needs_spark()
    with psycopg.connect(database, autocommit=True) as connection:
        install(connection)
        connection.execute("CREATE TABLE tariffs (code text PRIMARY KEY, rate int)")
    command = [sys.executable, "-m", "tests.spark.driver_memory_child", database, str(tmp_path)]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    peaks = json.loads(done.stdout.splitlines()[-1])
    print(peaks)
    assert peaks["many rows"] < peaks["few rows"] + ROWS_MB, peaks
    assert peaks["many files"] < peaks["few rows"] + FILES_MB, peaks
