"""Write every page of docs/reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from . import cli, configuration, connector, http, metrics, proofs, transforms, types

__all__ = ["PAGES", "REFERENCE", "main"]

REFERENCE = Path(__file__).parents[1] / "reference"

PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": cli.page_text,
    "configuration.md": configuration.page_text,
    "connector.md": connector.page_text,
    "http.md": http.page_text,
    "metrics.md": metrics.page_text,
    "proofs.md": proofs.page_text,
    "transforms.md": transforms.page_text,
    "types.md": types.page_text,
}


def main() -> None:
    """Write what has changed and say so."""
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        path, text = REFERENCE / name, page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path}")


if __name__ == "__main__":
    main()
