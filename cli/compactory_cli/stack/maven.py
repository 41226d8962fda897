"""Files that Maven fetches once for all processes of a user; the jars of Apache Kafka among them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compactory.errors import Unreachable

__all__ = ["KAFKA_VERSION", "QUICK", "fetch", "format_storage", "kafka_folder", "kafka_jars", "kafka_lacks", "locked"]

KAFKA_VERSION = "4.1.0"
QUICK = "-XX:TieredStopAtLevel=1"
"""Leaves out the JVM's second compiler, which costs a short-lived process more than it saves."""

_POM = Path(__file__).with_name("pom.xml")
_CHECKPOINT = "bootstrap.checkpoint"


def kafka_lacks(version: str = KAFKA_VERSION) -> str | None:
    """Return what this machine lacks to run Apache Kafka, such as "mvn not on PATH"; None if it lacks nothing."""
    needed = ["java"] if (kafka_folder(version) / ".complete").exists() else ["java", "mvn"]
    absent = [name for name in needed if shutil.which(name) is None]
    return f"{' and '.join(absent)} not on PATH" if absent else None


def kafka_folder(version: str = KAFKA_VERSION) -> Path:
    """Return the folder for Kafka's jars: ``$XDG_CACHE_HOME/compactory/kafka-VERSION``, by default in ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "compactory" / f"kafka-{version}"


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """Return the folder of Kafka's jars, with the first file of a formatted log.

    The first call fetches them with Maven (55 MB). Raises Unreachable if that fails, or if Java is too old.
    """
    folder = kafka_folder(version)
    mark = folder / ".complete"
    with locked(folder.parent):
        if not mark.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            goal = ("dependency:copy-dependencies", f"-DoutputDirectory={folder}")
            fetch("Apache Kafka", "-f", str(_POM), f"-Dkafka={version}", *goal)
            mark.touch()
        if not (folder / _CHECKPOINT).exists():
            _keep_checkpoint(folder)
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, which is made, so that one process at a time fetches into it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "fetching.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(subject: str, *arguments: str) -> None:
    """Run Maven. Raises Unreachable, naming ``subject``, if Maven fails."""
    maven = subprocess.run(["mvn", "-q", "-B", *arguments], capture_output=True, text=True, check=False)
    if maven.returncode:
        raise Unreachable("maven", f"could not fetch {subject}:\n{maven.stdout[-2000:]}{maven.stderr[-2000:]}")


def format_storage(jars: Path, config: Path, cluster_id: str, *arguments: str) -> None:
    """Format the storage of a broker with Kafka's own tool. Raises Unreachable with the tool's error."""
    command = ["java", QUICK, "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format", "-t", cluster_id]
    tool = subprocess.run([*command, "-c", str(config), *arguments], capture_output=True, text=True, check=False)
    if tool.returncode:
        raise Unreachable("kafka", f"could not format Kafka's storage:\n{tool.stdout[-1000:]}{tool.stderr[-1000:]}")


def _keep_checkpoint(jars: Path) -> None:
    """Format a log once, and keep the file that is the same for every broker without accounts."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "server.properties"
        config.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n"
            "listeners=CONTROLLER://127.0.0.1:9093,PLAINTEXT://127.0.0.1:9092\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={folder}/data\n"
        )
        format_storage(jars, config, "MkU3OEVBNTcwNTJENDM2Qg")
        shutil.copy(Path(folder) / "data" / _CHECKPOINT, jars / _CHECKPOINT)
