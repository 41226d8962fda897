"""The public surface, and what importing it must not cost."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import compactory

HEAVY = ("psycopg", "fastapi", "rocksdict", "pyspark", "prometheus_client", "typer", "rich", "structlog", "uvicorn")


def test_exports_equal_all() -> None:
    """Every public name is listed, sorted, and there are few."""
    public = {
        name
        for name, value in vars(compactory).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == set(compactory.__all__)
    assert compactory.__all__ == sorted(compactory.__all__)
    assert len(compactory.__all__) <= 32
    assert all(getattr(compactory, name).__doc__ for name in compactory.__all__)


def test_importing_loads_nothing_heavy() -> None:
    """In a process of its own: this one has loaded everything already."""
    check = (
        "import sys, compactory\n"
        "import compactory.worker, compactory.kafka\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", check], check=True)


def test_three_modules_import_the_client() -> None:
    """Everything else goes through `kafka.client`, which asks by `kafka.admin`; the third maps errors."""
    from pathlib import Path

    folder = Path(compactory.__file__).parent
    importing = {path for path in folder.rglob("*.py") if "confluent_kafka" in path.read_text(encoding="utf-8")}
    assert importing == {folder / "kafka" / name for name in ("admin.py", "client.py", "kafka_errors.py")}
