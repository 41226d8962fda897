"""Links resolve, pages are found, and whatever a code block says exists."""

from __future__ import annotations

import ast
import importlib
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from compactory_connectors.source.config.files import parse_connector
from tests.docs.pages import PAGES, ROOT, anchors, blocks, commands, links, settings_problems, usage_problem


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_resolve(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no such file"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading; there are {sorted(anchors(target))}"


def test_every_page_is_linked_to() -> None:
    targets = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in links(page)}
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in targets and page.name != "README.md"] == []


def test_the_reference_is_what_the_code_says() -> None:
    from docs.generate.__main__ import PAGES as GENERATED
    from docs.generate.__main__ import REFERENCE

    stale = [name for name, page in GENERATED.items() if (REFERENCE / name).read_text() != page()]
    assert not stale, f"run make docs: {stale}"
    assert sorted(path.name for path in REFERENCE.glob("*.md")) == sorted(GENERATED)


ROOMS = [
    "store/compactory",
    *(
        f"connectors/compactory_connectors/{name}"
        for name in ("connect", "jobs", "outbox", "processors", "sink", "source", "spark")
    ),
]
ROOMS += ["api/compactory_api", "api/compactory_console", "cli/compactory_cli"]


@pytest.mark.parametrize("folder", ROOMS)
def test_the_file_map_names_every_package(folder: str) -> None:
    named = set(re.findall(r"`([\w/]+)`", (ROOT / "DESIGN.md").read_text()))
    packages = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
    assert sorted(packages - named) == []


@pytest.mark.parametrize("folder", ROOMS)
def test_no_folder_is_a_mere_list(folder: str) -> None:
    sizes = {path.parent: len(list(path.parent.glob("*.py"))) for path in (ROOT / folder).rglob("__init__.py")}
    assert {str(path.relative_to(ROOT)): size for path, size in sizes.items() if size > 22} == {}


@pytest.mark.parametrize("block", blocks("sh"), ids=lambda block: block.name)
def test_commands_and_options_exist(block) -> None:
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(block.text):
        if words[0] == "compactory":
            assert usage_problem(words[1:]) is None, " ".join(words)
        elif "/" in words[0]:
            assert (ROOT / words[0]).is_file(), words[0]
        elif words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, " ".join(words)


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.name)
def test_python_compiles_and_its_imports_exist(block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            unknown = [item.name for item in node.names if not hasattr(module, item.name)]
            assert [name for name in unknown if not find_spec(f"{node.module}.{name}")] == []


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.name)
def test_settings_are_valid(block, tmp_path: Path) -> None:
    path = tmp_path / "compactory.toml"
    path.write_text(block.text)
    for connector in re.findall(r'^connector = "(.+)"$', block.text, re.MULTILINE):
        (tmp_path / connector).touch()
    for schema in re.findall(r'^schema = "([^"]+)"', block.text, re.MULTILINE):
        (tmp_path / schema).write_text("{}")
    assert settings_problems(path) == []


@pytest.mark.parametrize("block", blocks("json", "yaml"), ids=lambda block: block.name)
def test_documents_can_be_read(block) -> None:
    if block.language == "yaml":
        assert list(yaml.safe_load_all(block.text))
        return
    document = json.loads(block.text)
    if "topic.prefix" in document:
        parse_connector(block.text, default_name="any", environment={})


def test_every_block_that_says_so_is_run() -> None:
    runs = {block.run for block in blocks("sh", "python", "json", "toml", "sql")} - {None}
    sources = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tested = {run for source in sources for run in re.findall(r'blocks\([^)]*run="(\w+)"', source)}
    assert runs == tested


def test_nobody_is_told_to_install_compactory_from_a_package_index() -> None:
    """No index has it: a page or a message names a URL, in the one form that pip and a pyproject.toml both take."""
    files = [*PAGES, *(path for room in ("store", "api", "connectors", "cli") for path in (ROOT / room).rglob("*.py"))]
    by_name = re.compile(r"pip install (?:[^\n`#]*[ '])?compactory(?!\S* @ )")
    assert [str(path.relative_to(ROOT)) for path in files if by_name.search(path.read_text())] == []
