"""What a session of Spark Connect can do, as in a serverless notebook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.spark.conftest import needs_spark
from tests.spark.test_table_writer import sql, tariffs  # noqa: F401 (a fixture)
from tests.store.topics import Topics


@pytest.mark.proof
def test_a_session_of_spark_connect(
    kafka: str,
    unique: Callable[[str], str],
    tmp_path: Path,
    sql: psycopg.Connection[Any],  # noqa: F811
    database: str,
) -> None:
    needs_spark()
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'pyspark[connect]'")
    topics = Topics(kafka, unique)
    name = topics.create(2)
    topics.produce(name, ("a", '{"n": 1}'), ("a", '{"n": 2}'), ("gone", "{}"), ("gone", None))
    topics.produce(name, ("b", '{"n": 3}'), partition=1)
    command = [sys.executable, "-m", "tests.spark.connect_child", topics.address, name, str(tmp_path), database]
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "keys": [["a", 2], ["b", 3]],
        "filtered": 1,
        "schema": "struct<n:bigint>",
        "changes": 5,
        "exported": 2,
        "enriched": [True, False],
        "loaded": {"insert": 1, "update": 0, "unchanged": 2, "deactivate": 0},
        "refused": "table public.tariffs",
    }
    assert tariffs(sql) == [
        ("a", "1.50", "written", True), ("b", "3.00", "streamed", True), ("c", "5.00", "loaded", True)
    ]  # fmt: skip
