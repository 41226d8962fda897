"""The peers: Kafka Streams' GlobalKTable (`java/`, built with Maven on first use) and ktables (group ``bench``)."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
from pathlib import Path

from benchmarks.stage import WORK, Absent, Command, python

__all__ = ["GLOBAL_TABLE", "KTABLES", "global_table", "ktables", "ktables_visible"]

GLOBAL_TABLE = "GlobalKTable"
KTABLES = "ktables"
_SOURCES = Path(__file__).with_name("java")
_BUILT = WORK / "java"
_HEAP_PER_ENTRY = 700  # bytes: three times what the live entries take, so that the collector has room
_HEAP_LEAST = 1 << 30


def global_table(
    address: str,
    topic: str,
    store: str,
    state: Path,
    *,
    entries: int,
    values: str = "json",
    threads: int = 1,
    seconds: float = 1.0,
    collector: str = "",
    consumer: str = "tuned",
) -> Command:
    """Return the command that loads a GlobalKTable in ``memory`` or on ``rocksdb`` and reads from it.

    ``values`` are decoded at each read (``json``: Jackson to a Map) or left as bytes (``raw``). No ``threads``: no
    reads. ``consumer`` has large fetches (``tuned``) or Kafka's ``default``; ``collector`` is a flag of the JVM.
    """
    lacking = built()
    if lacking is not None:
        return lacking
    heap = max(_HEAP_LEAST, entries * _HEAP_PER_ENTRY) >> 20
    options = [f"-Xms{heap}m", f"-Xmx{heap}m", *([collector] if collector else [])]
    classpath = f"{_BUILT / 'classes'}:{_BUILT / 'libs'}/*"
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    arguments = [address, topic, store, str(state), values, str(threads), str(seconds), consumer]
    return ["java", *options, quiet, "-cp", classpath, "GlobalTable", *arguments]


def ktables(address: str, topic: str, *options: object) -> Command:
    """Return the command that loads a ktables table and reads from it; see `benchmarks.programs.peers.ktables_load`."""
    absent = _no_ktables()
    return absent or python("peers.ktables_load", address, topic, *options)


def ktables_visible(address: str, topic: str, *options: object) -> Command:
    """Return the command that measures ktables' latency; see `benchmarks.programs.peers.ktables_visible`."""
    return _no_ktables() or python("peers.ktables_visible", address, topic, *options)


def _no_ktables() -> Absent | None:
    missing = [name for name in ("ktables", "cramjam") if importlib.util.find_spec(name) is None]
    return Absent(f"{' and '.join(missing)} not installed (make bench does)") if missing else None


@functools.cache
def built() -> Absent | None:
    """Build the Java peer, again after a change of its sources; return why that can't be done."""
    absent = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if absent:
        return Absent(f"{' and '.join(absent)} not on PATH")
    sources = sorted(path for path in _SOURCES.rglob("*") if path.is_file())
    mark, current = _BUILT / ".complete", b"".join(path.read_bytes() for path in sources)
    if mark.exists() and mark.read_bytes() == current:
        return None
    libs = f"-DoutputDirectory={_BUILT / 'libs'}"
    goals = ["clean", "compile", "dependency:copy-dependencies", "-DincludeScope=runtime", libs]
    command = ["mvn", "-q", "-B", "-f", str(_SOURCES / "pom.xml"), *goals]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"could not build the Java peer:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    mark.write_bytes(current)
    return None
