"""The console: pages over a million entries, and what 20 open tabs cost the lookups of a server that it shows."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.comparisons.http_lookups import server
from benchmarks.programs.http_load import ENTRIES, PURPOSE
from benchmarks.rows import AT_LEAST, AT_MOST, Figures, Row, Wanted, beside, plain
from benchmarks.stage import Comparison, Measured, Stage, Terms, python
from compactory_cli.stack.port import free_port

TABS = 20


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"console-pages": _pages, "console-tabs": _tabs}


def _pages(stage: Stage) -> Measured:
    entries = stage.terms.entries
    topic, served, shown = stage.topic(entries), free_port(), free_port()
    serve = ["compactory_cli", "serve", topic, "--kafka", stage.kafka, "--listen", f"127.0.0.1:{served}"]
    with server(served, "/readyz", *serve), server(shown, "/", *_console(served, shown)):
        taken = stage.alternate({"pages": python("console_pages", shown, topic, entries)})
    return Measured(list(_page_rows(taken, entries)), taken.rounds)


def _page_rows(taken: Figures, entries: int) -> Iterator[Row]:
    for name, what in (("entry", "page of an entry"), ("search", "search by prefix")):
        wanted = Wanted(AT_MOST, 50, "ms")
        yield from plain(
            taken,
            f"console, {what}, {entries:,} entries, p50",
            "pages",
            lambda figures, program, name=name: f"{figures.median(program, f'{name}_ms'):.1f} ms",  # type: ignore[misc]
            figure=f"{name}_ms",
            wanted=wanted,
        )


def _tabs(stage: Stage) -> Measured:
    topic, served, shown = stage.topic(ENTRIES, purpose=PURPOSE), free_port(), free_port()
    serve = ["compactory_cli", "serve", topic, "--kafka", stage.kafka, "--listen", f"127.0.0.1:{served}"]
    with server(served, "/readyz", *serve), server(shown, "/", *_console(served, shown)):
        commands = {name: python("console_tabs", served, shown, count) for name, count in (("none", 0), ("tabs", TABS))}
        taken = stage.alternate(commands)
    row = beside(
        taken,
        f"single lookups while {TABS} tabs show the server's overview",
        "tabs",
        ("none", "no tab"),
        lambda figures, name: f"{figures.median(name, 'rate') / 1000:.1f} k/s",
        wanted=Wanted(AT_LEAST, 0.95),
    )
    return Measured([row], taken.rounds)


def _console(served: int, shown: int) -> list[str]:
    """Return the command of a console that shows one server."""
    listen = f"127.0.0.1:{shown}"
    return ["compactory_cli", "console", "--server", f"http://127.0.0.1:{served}", "--listen", listen]
