"""Build the site from the Markdown of the repository into build/site; `make docs` runs it.

The site asks no other host for anything: search, fonts and icons are in it. Diagrams are drawn where npm is installed.
Fails for a page that no entry of the navigation names, and for a dead link.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
FOLDERS = ("benchmarks", "docs", "examples")
MERMAID = "mermaid@11.4.1"
_LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(\))")


def main() -> int:
    """Return the exit code of the builder; 1 for a page that the navigation lacks."""
    settings = (ROOT / "docs" / "site.toml").read_text()
    repository = tomllib.loads(settings)["project"]["repo_url"]
    pages = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
    nav = [_expanded(entry) for entry in tomllib.loads((ROOT / "docs" / "navigation.toml").read_text())["nav"]]
    if orphans := {str(page.relative_to(ROOT)) for page in pages} - set(_files(nav)):
        print(f"docs/navigation.toml: no entry names {', '.join(sorted(orphans))}", file=sys.stderr)
        return 1
    shutil.rmtree(PAGES, ignore_errors=True)
    for page in pages:
        copy = PAGES / page.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_with_links(page, repository))
    for picture in [*ROOT.glob("docs/**/*.svg"), *ROOT.glob("docs/**/*.png"), *ROOT.glob("benchmarks/**/*.svg")]:
        copy = PAGES / picture.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, copy)
    _draw_diagrams()
    (ROOT / "build" / "site.toml").write_text(settings.replace("[project]\n", f"[project]\nnav = {_toml(nav)}\n", 1))
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean", "-f", "build/site.toml"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _expanded(entry: Any) -> Any:
    """Return an entry of the navigation with the pages in place of a pattern."""
    if isinstance(entry, dict):
        return {title: [item for part in parts for item in _expanded_parts(part)] for title, parts in entry.items()}
    return entry


def _expanded_parts(part: Any) -> list[Any]:
    if isinstance(part, dict):
        return [_expanded(part)]
    return sorted(str(page.relative_to(ROOT)) for page in ROOT.glob(part))


def _files(entries: Any) -> Iterator[str]:
    """Yield the files of a navigation."""
    for entry in entries:
        if isinstance(entry, dict):
            for parts in entry.values():
                yield from _files(parts)
        else:
            yield entry


def _with_links(page: Path, repository: str) -> str:
    """Return the text of a page, in which links to files that are no pages go to the repository."""

    def link(match: re.Match[str]) -> str:
        target = (page.parent / match[2]).resolve()
        if target.suffix in {".md", ".svg", ".png"} and not target.is_dir():
            return match[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"{match[1]}{repository}/{kind}/main/{target.relative_to(ROOT)}{match[3] or ''}{match[4]}"

    return _LINK.sub(link, page.read_text())


def _draw_diagrams() -> None:
    """Put the script that draws diagrams beside the pages; without npm, diagrams stay text."""
    script = PAGES / "mermaid.min.js"
    script.touch()
    npm = shutil.which("npm")
    if npm is None:
        print("npm is missing: diagrams are shown as text", file=sys.stderr)
        return
    folder = ROOT / "build" / "mermaid"
    packed = folder / "package" / "dist" / "mermaid.min.js"
    if not packed.exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run([npm, "pack", "--silent", MERMAID], cwd=folder, capture_output=True, check=True)
        shutil.unpack_archive(folder / archive.stdout.decode().strip(), folder)
    shutil.copy(packed, script)


def _toml(value: Any) -> str:
    """Return lists, tables and texts as TOML."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {_toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


if __name__ == "__main__":
    sys.exit(main())
