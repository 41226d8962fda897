"""``spark-submit`` of the command line: what it prints, and the exit code that a scheduler sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.source.conftest import Bench, article_environment
from tests.spark.conftest import needs_spark

JOB = Path(__file__).parents[2] / "examples" / "spark" / "compactory_job.py"


@pytest.fixture
def bench(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Bench]:
    bench = Bench(database, kafka, f"{unique('sub')}.")
    yield bench
    bench.close()


def submit(bench: Bench, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """As a cluster's user would; the jars are named, for spark-submit is asked for nothing but what it is given."""
    command = [
        Path(sys.executable).with_name("spark-submit"), "--master", "local[2]", "--driver-memory", "1g",
        "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2",
        JOB, *arguments,
    ]  # fmt: skip
    environment = {**os.environ, **article_environment(bench.url, bench.prefix), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.proof
def test_an_export_is_submitted(bench: Bench, kafka: str, tmp_path: Path) -> None:
    needs_spark()
    bench.add(*(f"T{number}" for number in range(50)))
    bench.once(name="terminal_acquirer")
    done = submit(bench, "spark", "export", bench.topic, "--to", tmp_path / "files", "--kafka", kafka, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["rows"] == 50
