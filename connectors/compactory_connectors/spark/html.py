"""Reports as HTML, for notebooks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["report_html"]


def report_html(title: str, rows: Iterable[tuple[str, object]], lines: Iterable[str] = ()) -> str:
    """A table of names and figures under a title, and lines below it; whatever they hold is escaped."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(_shown(value))}</td></tr>" for name, value in rows)
    below = "".join(f"<div>{escape(line)}</div>" for line in lines)
    return f"<div><b>{escape(title)}</b><table>{cells}</table>{below}</div>"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
