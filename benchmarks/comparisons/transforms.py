"""Rows through chains of transforms and converters, in this process: columns as Postgres writes them → key and value.

Beside it a bare loop that puts the same columns into one template of bytes and converts nothing.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import Row
from benchmarks.stage import Comparison, Measured, Stage, Terms
from compactory_connectors.source import SourceRecord
from compactory_connectors.source.config.files import parse_connector
from compactory_connectors.source.config.selection import RelationKind
from compactory_connectors.source.mapping.row_plan import compile_plan
from compactory_connectors.source.postgres.catalog import Column, Table

__all__ = ["comparisons"]

ROWS = 50_000
ROUNDS = 9
MOST = 2.0  # microseconds a row
CONNECTOR = Path(__file__).parents[2] / "examples" / "connectors" / "terminal_acquirer.json"
TABLE = Table(
    schema="public",
    name="terminal_acquirer",
    oid=1,
    kind=RelationKind.TABLE,
    columns=(
        Column(name="id", type="int8", not_null=True),
        Column(name="terminal_id", type="text", not_null=True),
        Column(name="acquirer_id", type="text", not_null=True),
        Column(name="is_active", type="bool", not_null=True),
        Column(name="updated_date", type="timestamp", not_null=True),
    ),
    primary_key=("id",),
)
KAFKA = "org.apache.kafka.connect.transforms."
MORE: Mapping[str, Mapping[str, str]] = {
    "and MaskField": {"type": f"{KAFKA}MaskField$Value", "fields": "terminalId"},
    "and Cast of a field to string": {"type": f"{KAFKA}Cast$Value", "spec": "id:string"},
    "and InsertField": {"type": f"{KAFKA}InsertField$Value", "static.field": "s", "static.value": "v"},
}

_Raw = Sequence[bytes | None]


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"transforms": _transforms}


def unchanged(record: SourceRecord) -> SourceRecord:
    """Return the record: a function that costs nothing but its call."""
    return record


def _transforms(_stage: Stage) -> Measured:
    """Measure in turns, so that what else the machine does falls on all alike."""
    article = {key: text for key, text in json.loads(CONNECTOR.read_text()).items() if "${" not in text}
    article |= {"connection.url": "jdbc:postgresql://db/shop", "topic.prefix": "", "connection.user": "u"}
    chains: dict[str, Mapping[str, str]] = {"the article's transforms": {}}
    for name, options in MORE.items():
        below = {f"transforms.x.{key}": text for key, text in options.items()}
        chains[name] = {"transforms": f"{article['transforms']},x", **below}
    chains["and a function of the user's"] = {"compactory.transform": f"{__name__}:unchanged"}
    programs: dict[str, Callable[[_Raw], Any]] = {"bare": _bare}
    for name, changes in chains.items():
        config = parse_connector(json.dumps({**article, **changes}), default_name="c", environment={})
        programs[name] = compile_plan(config, TABLE).render
    taken = _in_turns(programs)
    bare = statistics.median(taken.pop("bare"))
    rows = [_row(name, statistics.median(times), bare) for name, times in taken.items()]
    return Measured(rows, {name: [{"seconds": each / 1e6} for each in times] for name, times in taken.items()})


def _row(name: str, micros: float, bare: float) -> Row:
    wanted = name == "the article's transforms"
    return Row(
        what=name,
        figure=f"{micros:.2f} µs a row",
        beside=f"bare loop {bare:.2f} µs",
        ratio=micros / bare,
        wanted=f"≤ {MOST:g} µs" if wanted else "",
        met=micros <= MOST if wanted else None,
    )


def _in_turns(programs: Mapping[str, Callable[[_Raw], Any]]) -> dict[str, list[float]]:
    """Microseconds a row of each program, round by round."""
    rows: list[_Raw] = [
        [b"%d" % number, b"T%d" % number, b"A%d" % (number % 50), b"t", b"2024-01-01 11:11:11.%06d" % number]
        for number in range(1, ROWS + 1)
    ]
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, program in programs.items():
            began = time.thread_time()  # what others do to the cores does not count
            for row in rows:
                program(row)
            taken[name].append((time.thread_time() - began) / ROWS * 1e6)
    return taken


def _bare(raw: _Raw) -> tuple[bytes | None, bytes]:
    return raw[0], b'{"id":%b,"terminalId":"%b","acquirerId":"%b","isActive":%b,"updatedDate":"%b"}' % tuple(raw)  # type: ignore[str-format]  # no column is null
