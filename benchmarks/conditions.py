"""Under which conditions figures were taken: the machine, how busy it was, versions. Names no host, user or path."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from compactory_cli.stack.maven import KAFKA_VERSION

__all__ = ["conditions", "load"]

_PACKAGES = ("confluent-kafka", "orjson", "rocksdict", "ktables", "aiokafka")
_POMS = {"Kafka Streams": ("benchmarks/java/pom.xml", "kafka-streams")}
_ROOT = Path(__file__).parents[1]


def conditions() -> dict[str, Any]:
    """Return date, machine and versions."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "versions": {
            "Compactory": _commit(),
            "Python": platform.python_version(),
            **_packages(),
            **_jars(),
            "Apache Kafka": KAFKA_VERSION,
            "Java": _java(),
        },
    }


def load() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def _jars() -> dict[str, str]:
    """Return the versions that the poms name."""
    found = {}
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    for called, (pom, artifact) in _POMS.items():
        for each in ET.parse(_ROOT / pom).iterfind(".//m:dependency", space):
            if each.findtext("m:artifactId", namespaces=space) == artifact:
                found[called] = each.findtext("m:version", "", namespaces=space)
    return found


def _java() -> str:
    return _said("java", "-version").partition('"')[2].partition('"')[0] or "absent"


def _commit() -> str:
    return _said("git", "describe", "--always", "--dirty", "--abbrev=10").strip() or version("compactory")


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=_ROOT)
    except OSError:
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""
