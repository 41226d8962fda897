"""The Dockerfile: linted, and its build step run as written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.image import ROOT, dockerfile

BIN = Path(sys.executable).parent


def test_the_linter_finds_nothing() -> None:
    done = subprocess.run([BIN / "hadolint", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_two_stages_on_a_pinned_slim_base() -> None:
    build, final = dockerfile()
    assert (build.name, final.name) == ("build", None)
    assert build.base == final.base
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", final.base)
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert int(final.base.split(".")[1].split("-")[0]) >= int(oldest.split(".")[1])


def test_the_process_is_nobody_special() -> None:
    _, final = dockerfile()
    user = final.last("USER")
    assert re.fullmatch(r"\d+:\d+", user)
    assert not user.startswith("0:")
    assert f"--uid {user.split(':')[0]} " in final.last("RUN")
    position = [name for name, _ in final.instructions].index("USER")
    assert "RUN" not in [name for name, _ in final.instructions[position:]]


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    build, final = dockerfile()
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source.rstrip("/") for text in build.all("COPY") for source in text.split()[:-1]}
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    assert final.all("COPY") == ["--from=build /opt/compactory /opt/compactory"]
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.proof
def test_the_build_step_makes_a_command_that_runs(tmp_path: Path) -> None:
    """The same steps with other folders: versions and hashes are those of the constraints."""
    build, final = dockerfile()
    for text in build.all("COPY"):
        *sources, target = text.split()
        for source in sources:
            origin, place = ROOT / source, tmp_path / target / (Path(source).name if target == "./" else "")
            ignore = shutil.ignore_patterns("__pycache__")
            if origin.is_dir():
                shutil.copytree(origin, place, ignore=ignore)
            else:
                shutil.copy(origin, place)
    steps = " && ".join(build.all("RUN")).replace("/opt/compactory", str(tmp_path / "venv"))
    tool, *rest = steps.split(" && ")
    wanted = re.search(r'"(\$\(.*\))"', tool)
    assert wanted is not None
    uv = subprocess.check_output(["bash", "-c", f"echo {wanted[1]}"], cwd=tmp_path, text=True).strip()
    installed = subprocess.check_output([BIN / "uv", "--version"], text=True).split()[1]
    assert uv == f"uv=={installed}"
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "EXTRAS": "connectors"}
    done = subprocess.run(
        ["bash", "-ec", " && ".join(rest)], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    command = tmp_path / "venv" / "bin" / final.words("ENTRYPOINT")[0]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert subprocess.check_output([command, "--version"], text=True) == f"compactory {version}\n"
    assert subprocess.run([command, "source", "run", "--help"], capture_output=True, check=False).returncode == 0
