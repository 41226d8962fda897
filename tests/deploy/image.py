"""What the Dockerfile says about containers of its image, read without a container engine."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The instructions after one FROM, continued lines joined."""

    base: str
    name: str | None
    instructions: tuple[tuple[str, str], ...]

    def all(self, instruction: str) -> list[str]:
        return [text for name, text in self.instructions if name == instruction]

    def last(self, instruction: str) -> str:
        return self.all(instruction)[-1]

    def words(self, instruction: str) -> list[str]:
        """Of ENTRYPOINT and CMD in their exec form."""
        found: list[str] = json.loads(self.last(instruction))
        return found

    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for text in self.all("ENV") for pair in shlex.split(text))

    def health(self) -> list[str]:
        found: list[str] = json.loads(self.last("HEALTHCHECK").partition("CMD ")[2])
        return found


def stages(text: str) -> list[Stage]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    found: list[Stage] = []
    for line in joined:
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base=base, name=name or None, instructions=()))
        else:
            last = found[-1]
            more = (*last.instructions, (instruction, rest.strip()))
            found[-1] = Stage(base=last.base, name=last.name, instructions=more)
    return found


def dockerfile() -> list[Stage]:
    return stages((ROOT / "Dockerfile").read_text())
