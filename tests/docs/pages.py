"""The documentation as its tests see it: pages, headings, links, code blocks."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import typer.main

from compactory_cli.context.settings_file import SettingsReader
from compactory_cli.main import app

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "deploy", "docs", "examples")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])

_FENCE = re.compile(
    r"(?:^[ ]*<!-- run: (?P<run>\w+) -->\n)?^(?P<indent>[ ]*)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A code block; ``run`` names the test that runs it."""

    page: Path
    language: str
    text: str
    run: str | None

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.splitlines()[0] if self.text else ''}"


def blocks(*languages: str, run: str | None = None) -> list[Block]:
    """The blocks of these languages, or those that one test runs."""
    found = []
    for page in PAGES:
        for match in _FENCE.finditer(page.read_text()):
            block = Block(page, match["language"], dedent(match["text"]), match["run"])
            if block.language in languages and run in (None, block.run):
                found.append(block)
    return found


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings as GitHub makes them."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command line of a shell block."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def usage_problem(words: list[str]) -> str | None:
    """What ``compactory`` would not understand of its arguments."""
    root: Any = typer.main.get_command(app)
    command = root
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name not in command.commands:
            return f"no command {name!r}"
        command = command.commands[name]
    known = {
        option: item
        for item in (*command.params, *root.params)
        for option in (*item.opts, *item.secondary_opts)
        if option.startswith("--")
    }
    known |= {"--help": None}
    for word in rest:
        if word.startswith("--") and word not in known:
            return f"{command.name} has no option {word!r}"
    return None


def settings_problems(path: Path) -> list[str]:
    """What a file of settings has wrong by itself, without the servers and files that its Kafka names."""
    reader = SettingsReader(path, tomllib.loads(path.read_text()), {})
    http = reader.section("http")
    list(reader.clients(http.pop("clients", {})))
    for read in (reader.kafka, reader.store, reader.directories, reader.console):
        read()
    reader.topic_defaults()
    return reader.problems
