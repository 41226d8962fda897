"""Output of commands: results on stdout, all else on stderr; tables for people, JSON for programs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = [
    "answer",
    "cut",
    "decoded",
    "error_output",
    "escape",
    "fields",
    "json_or_text",
    "legible",
    "marked",
    "named",
    "number",
    "output",
    "print_count",
    "print_facts",
    "print_json",
    "print_table",
    "printable",
    "say",
    "seconds",
    "span",
    "use_json",
    "wants_json",
    "warn",
    "write",
]

_json: ContextVar[bool] = ContextVar("json", default=False)

_WIDTH = 60  # characters shown of a long value, around the first difference


@cache
def output() -> Console:
    """Return the console on stdout. Piped output is never wrapped or shortened."""
    return _new_console(stderr=False)


@cache
def error_output() -> Console:
    """Return the console on stderr."""
    return _new_console(stderr=True)


def use_json(is_wanted: bool) -> None:
    """Print for programs from now on, or for people."""
    _json.set(is_wanted)


def wants_json() -> bool:
    """Return True if the command prints for programs."""
    return _json.get()


def _new_console(*, stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, emoji=False)
    return console if console.is_terminal else Console(stderr=stderr, emoji=False, width=10_000)


def say(text: str) -> None:
    """Print a line of rich's markup on stdout, for people."""
    output().print(text, highlight=False, soft_wrap=True)


def write(text: str) -> None:
    """Print a line as it is on stdout: without markup, and never wrapped."""
    output().print(text, markup=False, highlight=False, soft_wrap=True)


def escape(text: str) -> str:
    """Return a text without what rich would take for markup."""
    from rich.markup import escape

    return escape(text)


def warn(text: str) -> None:
    """Print a line on stderr about something that does not end the command."""
    error_output().print(f"[yellow]warning:[/] {escape(text)}", highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a JSON value on one line of stdout."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def fields(item: object, *names: str) -> dict[str, Any]:
    """Return these attributes of an object as a dictionary."""
    return {name: getattr(item, name) for name in names}


def answer(value: Any, text: str) -> None:
    """Print the one value of a command for programs, or a line of markup for people."""
    if wants_json():
        print_json(value)
    else:
        say(text)


def print_count(count: int, noun: str, outcome: str) -> None:
    """Print ``3 jobs cancelled``, or ``{"jobs": 3}``."""
    answer({f"{noun}s": count}, f"{number(count)} {noun}{'s' if count != 1 else ''} {outcome}")


def print_table(
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    right: Iterable[str] = (),
    none: str | None = None,
    indent: int = 0,
) -> None:
    """Print a table on stdout, or the text ``none`` if it has no rows.

    ``right`` names the columns of numbers. None in a cell is shown as a dash.
    """
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text("–" if cell is None else str(cell)) for cell in row))
    shown = Padding(table, (1, indent), expand=False) if indent else table
    output().print(shown if table.rows or none is None else none)


def print_facts(facts: Iterable[tuple[str, str]], indent: str = "  ", style: str = "dim") -> None:
    """Print name and text of each fact on a line."""
    for name, text in facts:
        say(f"{indent}[{style}]{name:<10}[/] {escape(text)}")


def marked(style: str, text: object) -> Text:
    """Return a cell of a table in a style of rich."""
    from rich.text import Text

    return Text(str(text), style)


def json_or_text(value: bytes | None) -> Any:
    """Return a record's value read as JSON, else as text."""
    if value is None:
        return None
    try:
        return json.loads(value)
    except ValueError:
        return value.decode(errors="replace")


def decoded(raw: bytes | None) -> str | None:
    """Return bytes of a record as text for programs. Bytes that are not UTF-8 are replaced."""
    return None if raw is None else raw.decode(errors="replace")


def legible(raw: bytes | None, otherwise: str = "") -> str:
    """Return bytes of a record as text for people, ``otherwise`` for None. Control characters are escaped."""
    return otherwise if raw is None else printable(raw.decode(errors="backslashreplace"))


def printable(text: str) -> str:
    """Return a text on one line with control characters and unprintable characters escaped."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def number(value: int) -> str:
    """Return ``1,234,567`` for 1234567."""
    return f"{value:,}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return ``1 record`` or ``1,234 records``. Give ``plural`` if it is not the noun with an s."""
    return f"{number(count)} {noun if count == 1 else plural or noun + 's'}"


def seconds(value: float) -> str:
    """Return a short duration as text: ``0.3 ms``, ``120 ms``, ``2.51 s``."""
    if value < 1:
        return f"{value * 1000:.1f} ms" if value < 0.01 else f"{value * 1000:.0f} ms"
    return f"{value:.2f} s"


def span(seconds: float) -> str:
    """Return a long duration as text: ``4 s``, ``12 min``, ``3 h 5 min``, ``2 d 4 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def cut(value: bytes | None, compared: bytes | None, width: int = _WIDTH) -> str:
    """Return a value for people; of a long value the part around its first difference from ``compared``."""
    text = legible(value, "–")
    if len(text) <= width:
        return text
    compared_text = legible(compared)
    first = next(
        (at for at, (a, b) in enumerate(zip(text, compared_text, strict=False)) if a != b),
        min(len(text), len(compared_text)),
    )
    start = 0 if first < width * 2 // 3 else min(first - width // 3, len(text) - width)
    end = start + width
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def named(name: str, raw: bytes | None) -> dict[str, str | None]:
    """Return bytes under ``name`` as text, or under ``<name>_base64`` if they are not UTF-8."""
    if raw is None:
        return {name: None}
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode()}
