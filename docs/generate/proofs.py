"""The tests that prove each guarantee, by the numbers that their names and docstrings cite."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

from compactory.ingest.gc_tuning import collector_paused

from .markdown import page

__all__ = ["page_text", "proofs", "titles"]

ROOT = Path(__file__).parents[2]
_GUARANTEES = ROOT / "docs" / "guarantees.md"
_NUMBERS = re.compile(r"[Gg]uarantees? ((?:\d+(?:, | and )?)+)")

_INTRO = """\
The promises are in [guarantees](../guarantees.md). A test that proves one cites its number, and this page lists it."""


def titles() -> dict[int, str]:
    """Number → title of every guarantee."""
    found = re.findall(r"^## (\d+)\. (.+)$", _GUARANTEES.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(number): title for number, title in found}


@cache
def proofs() -> dict[int, list[str]]:
    """Number → tests that cite it, as ``path::name``."""
    found: dict[int, list[str]] = {number: [] for number in titles()}
    with collector_paused():  # in a test: ast.parse fails if it collects a coroutine meanwhile (CPython gh-106905)
        for path in sorted((ROOT / "tests").rglob("test_*.py")):
            for name, number in _cited(ast.parse(path.read_text(encoding="utf-8"))):
                found.setdefault(number, []).append(f"{path.relative_to(ROOT)}::{name}")
    return found


def page_text() -> str:
    """The page."""
    tests, parts = proofs(), [_INTRO]
    for number, title in titles().items():
        parts.append(f"## {number}. {title}")
        parts.append("\n".join(_by_module(tests[number])) or "Not yet.")
    return page("Proofs", "the docstrings of `tests`", *parts)


def _cited(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            words = node.name.replace("_", " ") + "\n" + (ast.get_docstring(node) or "")
            cited = {int(digits) for found in _NUMBERS.finditer(words) for digits in re.findall(r"\d+", found[1])}
            yield from ((node.name, number) for number in sorted(cited))


def _by_module(places: list[str]) -> Iterator[str]:
    """A line for each module, with its tests in their order."""
    for path, group in groupby(places, lambda place: place.partition("::")[0]):
        names = ", ".join(f"`{place.partition('::')[2]}`" for place in group)
        yield f"- `{path}`: {names}"
