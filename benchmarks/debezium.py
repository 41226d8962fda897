"""Debezium in Kafka Connect's standalone worker: jars from Maven Central, a worker per run, with one connector."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.stage import WORK, Absent

__all__ = ["TRANSFORMS", "database", "jars", "running"]

TRANSFORMS = "org.apache.kafka.connect.transforms."
_POM = Path(__file__).with_name("connect") / "pom.xml"
_JARS = WORK / "debezium"


def jars() -> Path | Absent:
    """Return the folder of the jars, which are fetched on first use. Raises RuntimeError."""
    absent = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if absent:
        return Absent(f"{' and '.join(absent)} not on PATH")
    mark = _JARS / ".complete"
    if not mark.exists() or mark.read_bytes() != _POM.read_bytes():
        shutil.rmtree(_JARS, ignore_errors=True)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={_JARS}"]
        done = subprocess.run(["mvn", "-q", "-B", "-f", str(_POM), *goal], check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"could not fetch Debezium:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        mark.write_bytes(_POM.read_bytes())
    return _JARS


def database(dsn: str, prefix: str) -> dict[str, object]:
    """Return the connector's properties that name the database."""
    place = urlsplit(dsn)
    return {
        "name": "debezium",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": place.hostname,
        "database.port": place.port,
        "database.user": place.username,
        "database.password": "unused",
        "database.dbname": place.path.lstrip("/"),
        "plugin.name": "pgoutput",
        "slot.name": prefix,
        "slot.drop.on.stop": "true",
        "topic.prefix": prefix,
    }


@contextmanager
def running(
    folder: str, worker: Mapping[str, object], connector: Mapping[str, object]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker with the jars of ``folder`` and these properties."""
    with tempfile.TemporaryDirectory() as made:
        own = {"offset.storage.file.filename": f"{made}/offsets", "listeners": "http://127.0.0.1:0"}
        files = [_written(Path(made, "worker"), {**own, **worker}), _written(Path(made, "connector"), connector)]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        command = ["java", "-Xms1g", "-Xmx1g", quiet, "-cp", f"{folder}/*"]
        process = subprocess.Popen(
            [*command, "org.apache.kafka.connect.cli.ConnectStandalone", *files], stdout=sys.stderr
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:  # its REST server now and then waits for its own threads for ever
                process.kill()
                process.wait()


def _written(path: Path, properties: Mapping[str, object]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)
