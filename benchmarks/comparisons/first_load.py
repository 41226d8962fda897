"""First load of 1 M rows of five columns with the article's transforms, beside a bare loop and Debezium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psycopg

from benchmarks.comparisons.bootstrap import count
from benchmarks.debezium import jars
from benchmarks.rows import AT_LEAST, AT_MOST, Figures, Row, Wanted, beside, plain
from benchmarks.stage import Absent, Command, Comparison, Measured, Stage, Terms, python
from compactory_cli.stack.postgres import PostgresServer
from compactory_sql import read

__all__ = ["comparisons"]

BARE, DEBEZIUM, OURS = "bare loop", "Debezium", "Compactory"
MOST_MEMORY = 200  # MB


def comparisons(terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name; growth runs each size once."""
    growth = {f"first-load-{size}": partial(_growth, size) for size in terms.growth}
    return {"first-load": _first_load, **growth}


def _first_load(stage: Stage) -> Measured:
    rows = stage.terms.entries
    with _filled(rows) as url:
        commands = {**_commands(url, stage.kafka, rows), DEBEZIUM: _debezium(url, stage.kafka, rows)}
        taken = stage.alternate(commands)
    what = f"first load of {count(rows)} rows"
    found = [
        beside(taken, what, OURS, (BARE, BARE), _described, wanted=Wanted(AT_LEAST, 0.7)),
        beside(taken, f"{what}, processor time", OURS, (BARE, BARE), _busy, figure="cpu"),
        beside(taken, what, OURS, (DEBEZIUM, DEBEZIUM), _described, wanted=Wanted(AT_LEAST, 3)),
        _memory(taken, what),
    ]
    return Measured(found, taken.rounds)


def _growth(rows: int, stage: Stage) -> Measured:
    with _filled(rows) as url:
        taken = stage.alternate(_commands(url, stage.kafka, rows), rounds=1, warm=rows <= 10_000)
    what = f"first load of {count(rows)} rows"
    found = [row for name in (OURS, BARE) for row in plain(taken, f"{what}, {name}", name, _described)]
    return Measured([*found, _memory(taken, what)], taken.rounds)


def _commands(url: str, kafka: str, rows: int) -> dict[str, Command]:
    del rows
    return {OURS: python("source_load", url, kafka), BARE: python("bare.snapshot", url, kafka)}


def _described(taken: Figures, name: str) -> str:
    seconds, rows = taken.median(name, "seconds"), taken.median(name, "rows")
    return f"{seconds:.2f} s, {rows / seconds / 1e6:.2f} M rows/s"


def _busy(taken: Figures, name: str) -> str:
    return f"{taken.median(name, 'cpu'):.2f} s of processor"


def _memory(taken: Figures, what: str) -> Row:
    wanted, most = Wanted(AT_MOST, MOST_MEMORY, "MB"), taken.median(OURS, "rss_mb")
    return Row(what=f"{what}, memory", figure=f"{most:.0f} MB", wanted=str(wanted), met=wanted.met(most))


@contextmanager
def _filled(rows: int) -> Iterator[str]:
    """Yield the URL of a table of so many terminals, on a server that Debezium can read as well."""
    server = PostgresServer(settings={"wal_level": "logical", "max_wal_size": "4GB"})
    try:
        server.start()
        url = server.url()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(read("templates/terminal_acquirer.sql"))
            connection.execute(
                "INSERT INTO terminal_acquirer (terminal_id, acquirer_id, updated_date)"
                " SELECT 'T' || n, 'A' || n %% 500, timestamp '2024-01-01' + n * interval '1 second'"
                " FROM generate_series(1, %s) n",
                [rows],
            )
            connection.execute("VACUUM ANALYZE terminal_acquirer")
        yield url
    finally:
        server.remove()


def _debezium(url: str, kafka: str, rows: int) -> Command:
    folder = jars()
    return folder if isinstance(folder, Absent) else python("peers.debezium_load", folder, url, kafka, rows)
