"""Each extra alone in a clean environment: its modules are imported, and a command that needs another one says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.package.test_distribution import BIN, ROOT

pytestmark = pytest.mark.proof

MODULES = {
    "": "compactory, compactory.store, compactory.write.writer",
    "prometheus": "compactory.prometheus",
    "opentelemetry": "compactory.store",
    "rocksdb": "compactory.storage.rocksdb.backend, rocksdict",
    "connectors": "compactory_connectors.outbox, compactory_connectors.jobs, compactory_connectors.source",
    "api": "compactory_api.app, compactory_mastered",
    "client": "compactory_client",
    "cli": "compactory_cli.main",
    "spark": "compactory_connectors.spark.registration, compactory_connectors.spark.datasource.source",
    "schema-registry": "compactory, confluent_kafka.schema_registry",
    "demo": "compactory_cli.demo, compactory_api.app",
    "all": "compactory_api.app, compactory_connectors.sink, compactory.prometheus",
}
COMMANDS = {  # command → the extra that it names where the extra is missing
    "": {"get topic key": "cli"},
    "cli": {
        "serve topic --kafka 127.0.0.1:1": "api",
        "source run x.json": "connectors",
        "demo": "demo",
        "spark export x --to y --kafka 127.0.0.1:1": "spark",
    },
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([BIN / "uv", "build", "--quiet", "--wheel", "--out-dir", folder], cwd=ROOT, check=True)
    [path] = folder.glob("*.whl")
    return path


def install(folder: Path, wheel: Path, extra: str, python: str = sys.executable) -> Path:
    """Return the folder of the programs of a new environment with one extra."""
    uv = str(BIN / "uv")
    subprocess.run([uv, "venv", "--quiet", "--python", python, folder], check=True)
    name = f"compactory[{extra}] @ {wheel.as_uri()}" if extra else f"compactory @ {wheel.as_uri()}"
    command = [uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python"]
    subprocess.run([*command, "--constraints", ROOT / "constraints.txt", name], check=True)
    return folder / "bin"


@pytest.mark.parametrize("extra", MODULES)
def test_an_extra_alone(tmp_path: Path, wheel: Path, extra: str) -> None:
    programs = install(tmp_path / "venv", wheel, extra)
    subprocess.run([programs / "python", "-W", "error", "-c", f"import {MODULES[extra]}"], cwd=tmp_path, check=True)
    for command, missing in COMMANDS.get(extra, {}).items():
        done = subprocess.run(
            [programs / "compactory", *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"compactory[{missing}]" in done.stderr


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_another_python(tmp_path: Path, wheel: Path, version: str) -> None:
    folders = [*Path.home().glob(f".pyenv/versions/{version}.*/bin"), *os.environ["PATH"].split(os.pathsep)]
    python = shutil.which(f"python{version}", path=os.pathsep.join(map(str, folders)))
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    programs = install(tmp_path / "venv", wheel, "all", python)
    subprocess.run([programs / "python", "-c", f"import {MODULES['all']}"], cwd=tmp_path, check=True)
    subprocess.run([programs / "compactory", "--help"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
