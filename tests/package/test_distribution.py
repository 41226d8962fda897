"""The wheel and the source archive hold what git holds, and an index shows the README as it is here."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
NOT_IN_THE_ARCHIVE = (".ci/", ".github/")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([BIN / "uv", "build", "--quiet", "--out-dir", folder], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    """Return the files that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


def metadata(distributions: Path) -> Message:
    [wheel] = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_string(archive.read(name).decode())


def test_the_wheel_holds_the_packages(distributions: Path, tracked: set[str]) -> None:
    [wheel] = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    packages = re.compile(r"(?:store|connectors|api|cli|sql)/(\w+/.+)")
    assert files == {match[1] for name in tracked if (match := packages.fullmatch(name))}


def test_the_archive_holds_the_project(distributions: Path, tracked: set[str]) -> None:
    [path] = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert files - {"PKG-INFO"} == {name for name in tracked if not name.startswith(NOT_IN_THE_ARCHIVE)}


def test_an_index_takes_the_distributions(distributions: Path) -> None:
    subprocess.run([BIN / "twine", "check", "--strict", *distributions.glob("compactory-*")], check=True)


def test_no_link_of_the_readme_needs_the_repository(distributions: Path) -> None:
    text = str(metadata(distributions).get_payload())
    places = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", text)
    assert len(places) > 20
    assert [place for place in places if not "".join(place).startswith(("https://", "#"))] == []


def test_the_metadata_names_people_and_places(distributions: Path) -> None:
    fields = metadata(distributions)
    assert fields["License-Expression"] == "Apache-2.0"
    assert {label.partition(",")[0] for label in fields.get_all("Project-URL", [])} >= {"Homepage", "Issues"}
    assert fields["Maintainer"]
    assert fields["Requires-Python"] == ">=3.11"
