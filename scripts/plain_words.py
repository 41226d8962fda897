"""Check that the code of a room reads in plain words; `make lint` runs it with the limits in pyproject.toml.

It counts three symptoms for each 1,000 lines of code: variables whose name does not say what they hold, docstrings
that do not begin with what is returned or done, and top-level names that two modules of one room define.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
SYMPTOMS = ("vague", "riddles", "twins")
MOST_SHOWN = 30

RIDDLE = re.compile(
    r"(what|whose|whom|who|how|whether|so (many|much)|have|let|its?|they|that|those|one|where|when|if|as|no|not|to)\b",
    re.IGNORECASE,
)


@dataclass
class Findings:
    """Places with symptoms in the code below one folder."""

    lines: int = 0
    vague: list[str] = field(default_factory=list)
    riddles: list[str] = field(default_factory=list)
    twins: list[str] = field(default_factory=list)

    def rate(self, symptom: str) -> float:
        """Return how often a symptom occurs in 1,000 lines of code."""
        return 1000 * len(getattr(self, symptom)) / max(self.lines, 1)


def findings_below(folder: Path, vague_names: frozenset[str]) -> Findings:
    """Return the symptoms in all Python files below a folder."""
    findings = Findings()
    definitions: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        module = ast.parse(text)
        place = path.relative_to(ROOT)
        findings.lines += sum(1 for line in text.splitlines() if line.strip())
        findings.vague += [f"{place}:{line}: name {name!r}" for name, line in _names(module) if name in vague_names]
        findings.riddles += [f"{place}:{line}: docstring {text!r}" for text, line in _riddles(module)]
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                definitions[node.name].append(f"{place}:{node.lineno}: {node.name!r} is defined in several modules")
    findings.twins = [place for places in definitions.values() if len(places) > 1 for place in places]
    return findings


def _names(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield each name that gets a value, without the underscores around it, and its line."""
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                if not name.startswith("__"):
                    yield name.strip("_"), node.lineno


def _riddles(module: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text and RIDDLE.match(text):
                yield text.partition("\n")[0], getattr(node, "lineno", 1)


def main() -> int:
    """Print the rate of each symptom in each room, and the places of those above a limit; return the exit code."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    limits_of_rooms: dict[str, dict[str, float]] = settings["tool"]["plain-words"]["limits"]
    vague_names = frozenset(settings["tool"]["plain-words"]["vague-names"].split())
    exit_code = 0
    for room, limits in limits_of_rooms.items():
        findings = findings_below(ROOT / room, vague_names)
        rates = "  ".join(f"{symptom} {findings.rate(symptom):.1f}/{limits[symptom]}" for symptom in SYMPTOMS)
        print(f"{room:<10} {findings.lines:>6} lines  per 1,000: {rates}")
        for symptom in SYMPTOMS:
            if findings.rate(symptom) > limits[symptom]:
                print(*getattr(findings, symptom)[:MOST_SHOWN], sep="\n")
                exit_code = 1
    if exit_code:
        print("Give these names that say what they hold, and docstrings that begin with what is returned or done.")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
