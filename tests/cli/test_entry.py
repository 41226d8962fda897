"""An installation without an extra says which one to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
sys.argv = ["compactory", *{arguments!r}]
from compactory_cli.entry import run
run()
"""


def test_a_source_is_asked_over_http_without_the_driver_of_postgres() -> None:
    script = HIDE.format(package="psycopg", arguments=["source", "pause", "c", "--url", "http://127.0.0.1:1"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "was not reached" in done.stderr


def test_the_version_needs_no_extra() -> None:
    script = HIDE.format(package="typer", arguments=["--version"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("compactory ")


def test_a_processor_needs_no_driver_of_postgres() -> None:
    arguments = ["process", "failed", "p", "--kafka", "127.0.0.1:1"]
    script = HIDE.format(package="psycopg", arguments=arguments)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "was not reached" in done.stderr


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("typer", "cli", ["--help"]),
        ("psycopg", "connectors", ["sql", "status", "--postgres", "postgresql://127.0.0.1:9/x"]),
        ("fastapi", "api", ["serve", "t", "--kafka", "127.0.0.1:9"]),
    ],
)
def test_a_missing_extra_is_named(package: str, extra: str, arguments: list[str]) -> None:
    script = HIDE.format(package=package, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'compactory[{extra}] @ URL'" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_before_a_command_begins_is_no_traceback() -> None:
    script = HIDE.format(package="typer", arguments=["--help"]).replace("raise ModuleNotFoundError", "raise INT #")
    script = f"INT = KeyboardInterrupt\n{script}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")
