"""``spark-submit`` of the command line: what it prints, and the exit code that a scheduler sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactory import GlobalStore
from compactory_api.http.access import Access
from compactory_connectors.spark.jars import find_jars
from tests.api.serving import Serving
from tests.source.conftest import ARTICLE, Bench, article_environment
from tests.source.verify.test_verification import send
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
        "--jars", ",".join(map(str, find_jars())), JOB, *arguments,
    ]  # fmt: skip
    environment = {**os.environ, **article_environment(bench.url, bench.prefix), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.proof
def test_a_comparison_that_finds_differences(bench: Bench, kafka: str) -> None:
    """A table that lacks a key of the topic, and a store that has all of it: exit code 1, JSON alone on stdout."""
    needs_spark()
    bench.add(*(f"T{number}" for number in range(50)))
    bench.once(name="terminal_acquirer")
    send(bench, b"ghost", b'{"ghost":1}')
    serving = Serving(GlobalStore(kafka, [bench.topic]), Access())
    try:
        serving.wait_ready()
        url = f"http://127.0.0.1:{serving.port}"
        done = submit(bench, "verify", ARTICLE, "--spark", "--store", url, "--kafka", kafka, "--json", "--wait", "5")
    finally:
        serving.stop()
    assert done.returncode == 1, done.stderr[-3000:]
    found = json.loads(done.stdout)
    [topic], [store] = found["topics"], found["stores"]
    assert (found["equal"], topic["equal"], store["equal"]) == (False, False, True)
    assert (topic["expected"], topic["stored"], topic["extra"], store["stored"]) == (50, 51, 1, 51)
    assert [(each["key"], each["found"]) for each in topic["differences"]] == [("ghost", '{"ghost":1}')]
    assert topic["digests"]["topic"] != topic["digests"]["table"]
    assert store["positions"] == {"0": store["positions"]["0"]}
