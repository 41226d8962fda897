"""docs/guarantees.md and the tests cite each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
STATES = ("whole", "part", "not yet")
_CITED = re.compile(r"`(tests/\S+\.py)::(\w+)`")
_NUMBERS = re.compile(r"[Gg]uarantees? ((?:\d+(?:, | and )?)+)")


def sections() -> dict[int, str]:
    """Number → text of every guarantee."""
    parts = re.split(r"^## (\d+)\. ", PAGE.read_text(), flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


@cache
def functions(path: Path) -> dict[str, str]:
    """The test functions of a module and their docstrings."""
    tree = ast.parse(path.read_text())
    return {node.name: ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def proofs() -> Iterator[tuple[int, str]]:
    """Every test that says which guarantee it proves."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, docstring in functions(path).items():
            words = name.replace("_", " ") + "\n" + docstring
            for found in _NUMBERS.finditer(words):
                for number in re.findall(r"\d+", found[1]):
                    yield int(number), f"{path.relative_to(ROOT)}::{name}"


def test_all_sixteen_are_there_with_their_state() -> None:
    assert list(sections()) == list(range(1, 17))
    for number, text in sections().items():
        assert re.search(rf"^State: \*\*({'|'.join(STATES)})\*\*", text, re.MULTILINE), f"guarantee {number}"


@pytest.mark.parametrize("number", range(1, 17))
def test_what_is_cited_exists(number: int) -> None:
    cited = _CITED.findall(sections()[number])
    assert cited or "**not yet**" in sections()[number]
    for path, name in cited:
        assert name in functions(ROOT / path), f"guarantee {number}: {path}::{name} does not exist"


def test_every_proof_is_listed() -> None:
    text = sections()
    lacking = [f"guarantee {number}: - `{place}`" for number, place in proofs() if f"`{place}`" not in text[number]]
    assert not lacking, "add to docs/guarantees.md:\n" + "\n".join(lacking)
