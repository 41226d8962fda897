"""Delta: exports that overwrite a partitioned table, and a change stream that appends to one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.conftest import needs_spark
from tests.store.topics import Topics


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_exports_and_streams_into_delta(kafka: str, unique: Callable[[str], str], tmp_path: Path) -> None:
    """The first session fetches Delta's jars from Maven Central."""
    needs_spark()
    topics = Topics(kafka, unique)
    topic = topics.create(1)
    records = [("a", 1, "north"), ("b", 2, "south"), ("c", 3, "south"), ("a", 10, "north")]
    for key, rate, zone in records:
        topics.produce(topic, (key, json.dumps({"code": key, "rate": rate, "zone": zone})))
    command = [sys.executable, "-m", "tests.spark.delta_child", kafka, topic, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    changes = [["a", "put", 1], ["b", "put", 2], ["c", "put", 3], ["a", "put", 10]]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "export 1": [3, 0, [["a", 10, "north", "a"], ["b", 2, "south", "b"], ["c", 3, "south", "c"]]],
        "stream 1": changes,
        "folders": ["zone=north", "zone=south"],
        "export 2": [2, 0, [["a", 10, "north", "a"], ["b", 20, "north", "b"]]],
        "stream 2": [*changes, ["b", "put", 20], ["c", "delete", None]],
        "versions": 2,
    }
