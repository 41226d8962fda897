"""A million rows with one per cent of every defect: every row is counted once, and for what is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from compactory_connectors.postgres.jdbc_url import parse_url
from compactory_connectors.schema import install
from compactory_connectors.spark.into_table.to_postgres import PostgresTarget
from compactory_connectors.spark.load_job import Load, Plan
from compactory_connectors.spark.report import LoadReport, Outcome
from compactory_connectors.spark.rules.rules_file import parse_rules
from compactory_connectors.spark.target import Change, Mode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_000_000
QUOTES = 10
"""Records with a quote that is never closed: one a file."""
QUOTE = "opens a quote that is never closed, or closed on a later line where the columns no longer fit"
HEADER = "code,name,fee,count,day,moment,active,country,owner,changed"
TWICE = "is there more than once with different values, and no order in the rules says which row counts"
RULES = r"""
columns:
  code: {pattern: '[KXYZ]\d+|SKEW'}
  fee: {min: 0}
  country: {allowed: [DE, NO]}
  owner: {reference: owners}
checks: [{name: changed after day, expression: changed >= day}]
duplicates: [changed desc]
"""

Row = Callable[[int], str]


def row(n: int, **values: str) -> str:
    """A good row, but for what is given."""
    good = {
        "code": f"K{n}",
        "name": f"Ünicode 😀 {n}",
        "fee": f"{n % 1000}.{n % 100:02d}",
        "count": str(n),
        "day": "2024-02-29",
        "moment": "2024-03-01 10:00:00",
        "active": "yes",
        "country": "NO",
        "owner": f"O{n % 7}",
        "changed": "2024-03-01",
    }
    return ",".join((good | values).values())


DEFECTS: dict[str, Row] = {
    "name is missing": lambda n: row(n, name=""),
    "name is longer than 40 characters": lambda n: row(n, name="😀" * 41),
    "name has a NUL character, which Postgres does not hold": lambda n: row(n, name="a\0b"),
    "fee is not a number": lambda n: row(n, fee="1 200"),
    "fee does not fit numeric(10,2)": lambda n: row(n, fee="123456789.00"),
    "fee has more than 2 decimals": lambda n: row(n, fee="1.005"),
    "fee is less than 0": lambda n: row(n, fee="-0.01"),
    "count is not a whole number": lambda n: row(n, count="1.0"),
    "count does not fit integer": lambda n: row(n, count="2147483648"),
    "day is not a date like YYYY-MM-DD": lambda n: row(n, day="2023-02-29"),
    "moment is not a time like YYYY-MM-DD HH:MM:SS": lambda n: row(n, moment="2024-03-01 24:01:00"),
    "moment has an offset, and the column has no time zone": lambda n: row(n, moment="2024-03-01T10:00:00+02:00"),
    "active is neither true nor false": lambda n: row(n, active="perhaps"),
    "country is not one of the allowed values": lambda n: row(n, country="XX"),
    "owner is not in directory owners": lambda n: row(n, owner="nobody"),
    "code is missing": lambda n: row(n, code=""),
    "code does not match [KXYZ]\\d+|SKEW": lambda n: row(n, code=f"k{n}"),
    "does not satisfy: changed after day": lambda n: row(n, changed="2024-01-01"),
    "has another number of columns than the header": lambda n: row(n) + ",more",
    QUOTE: row,
    "is not text in the encoding of the file; say read.encoding in the rules": lambda n: row(n, name="\udcff"),
    "undecided": lambda n: row(n, code=f"X{n // 200}", name=f"a {n}"),
}
GOOD: dict[str, Row] = {
    "embedded": lambda n: row(n, name=f'"two\r\nlines, ""{n}"""'),
    "empty": lambda n: row(n, name='""', fee="", count="", day="", moment="", owner=""),
    "alike": lambda n: row(n - n % 200, code=f"Y{n // 200}"),
    "ordered": lambda n: row(n, code=f"Z{n // 200}", changed=f"2024-03-{1 + n // 100 % 2:02d}"),
    "skewed": lambda n: row(n, code="SKEW", changed="2024-04-01" if n // 100 else "2024-05-01"),
}
KINDS = [*DEFECTS.values(), *GOOD.values()]


def lines() -> Iterator[str]:
    """Row n is of kind n modulo 100; those above the kinds are good. Of some kinds two rows in a row share a key."""
    for n in range(ROWS):
        kind = n % 100
        yield (KINDS[kind] if kind < len(KINDS) else row)(n)


def write(folder: Path) -> None:
    """Four files of all kinds, and ten of one: an open quote takes whatever quote comes next for its end."""
    folder.mkdir()
    names = [f"{number}.csv" for number in range(4)] + [f"quote{number}.csv" for number in range(QUOTES)]
    files = [(folder / name).open("w", encoding="utf-8", errors="surrogateescape", newline="") for name in names]
    for file in files:
        file.write(HEADER + "\n")
    quote = list(DEFECTS).index(QUOTE)
    for n, line in enumerate(lines()):
        if n % 100 == quote:
            nth = n // 100
            files[4 + nth % QUOTES].write(row(n, name='"open' if QUOTES <= nth < 2 * QUOTES else "a") + "\n")
        else:
            files[n * 4 // ROWS].write(line + ("\r\n" if n % 3 else "\n"))
    for file in files:
        file.close()


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_a_million_rows_with_every_defect(spark: SparkSession, database: str, tmp_path: Path) -> None:
    """Counts are exact: per reason, of what gave way, of what was loaded; and the table has the accepted rows."""
    write(tmp_path / "in")
    with psycopg.connect(database, autocommit=True) as connection:
        install(connection)
        connection.execute(
            "CREATE TABLE big (code text PRIMARY KEY, name varchar(40) NOT NULL, fee numeric(10,2), count int,"
            " day date, moment timestamp, active bool NOT NULL, country char(2), owner text, changed date)"
        )
    owners = spark.createDataFrame([(f"O{number}",) for number in range(7)], "value string")
    target = PostgresTarget(connection=parse_url(database), table="big")
    report = LoadReport(load_id="x", directory="big", target="", mode=Mode.UPSERT, source=())
    plan = Plan(
        sources=[str(tmp_path / "in")],
        rules=parse_rules(RULES, "rules.yaml"),
        references=lambda _column, _reference: owners,
        rejects=str(tmp_path / "rejects"),
    )
    try:
        Load(spark, target, plan, report).run()
    finally:
        target.close()
    each = ROWS // 100
    wanted = dict.fromkeys(DEFECTS, each)
    undecided, wanted[QUOTE] = wanted.pop("undecided"), QUOTES
    found = {str(reason): count for reason, count in report.reasons.items()}
    assert found.pop(f"code {TWICE}") == undecided
    assert found == wanted
    assert report.rejected == each * (len(DEFECTS) - 1) + QUOTES
    assert report.duplicates == each // 2 * 2 + each - 1
    assert (report.read, report.outcome) == (ROWS, Outcome.DONE)
    assert report.accepted == ROWS - report.rejected - report.duplicates == report.changes[Change.INSERT]
    with psycopg.connect(database) as connection:
        query = "SELECT count(*), count(*) FILTER (WHERE name ~ E'two\\r\\nlines, \"[0-9]+\"') FROM big"
        assert connection.execute(query.encode()).fetchone() == (report.accepted, each)
        query = "SELECT count(*) FROM big WHERE code LIKE 'Z%' AND changed <> '2024-03-02'"
        assert connection.execute(query.encode()).fetchone() == (0,)
    kept = Counter(
        reason["text"]
        for file in (tmp_path / "rejects").glob("part-*.json")
        for line in file.read_text().splitlines()
        for reason in json.loads(line)["reasons"]
    )
    assert sum(kept.values()) == sum(report.reasons.values())
    print({stage: round(seconds, 1) for stage, seconds in report.seconds.items()})
