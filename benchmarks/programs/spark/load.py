"""CSV files loaded into a table by ``compactory spark load``'s pipeline: rules, comparison, one merge each.

Usage: spark.load DSN TABLE FILE…. The files are loaded one after the other in one session of Spark. Prints rows, the
seconds of each load, those of every stage, and those that Spark took to start, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.stage import LAUNCHED
from compactory_connectors.postgres.jdbc_url import parse_url
from compactory_connectors.spark.into_table.to_postgres import PostgresTarget
from compactory_connectors.spark.load_job import Load, Plan
from compactory_connectors.spark.report import LoadReport, Outcome
from compactory_connectors.spark.rules.rules_file import parse_rules
from compactory_connectors.spark.session import SparkOptions, session
from compactory_connectors.spark.target import Mode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES = r"""
columns:
  terminal_id: {pattern: 'T\d{8}'}
  acquirer_id: {required: true, pattern: 'A\d+'}
  merchant: {trim: true, required: true}
  rate: {min: 0, max: 1000}
  opened: {min: 2000-01-01}
duplicates: [rate desc]
"""


def load(spark: SparkSession, dsn: str, table: str, file: str) -> LoadReport:
    """Load one file and return what came of it."""
    target = PostgresTarget(connection=parse_url(dsn), table=table)
    plan = Plan(sources=[file], rules=parse_rules(RULES, "rules"))
    report = LoadReport(load_id=file, directory=table, target=table, mode=Mode.UPSERT, source=[file])
    try:
        Load(spark, target, plan, report).run()
    finally:
        target.close()
    assert report.outcome is Outcome.DONE, report.why
    return report


def timed(work: Callable[[], LoadReport]) -> tuple[float, LoadReport]:
    """Do the work and return the seconds that it took."""
    began = time.perf_counter()
    report = work()
    return time.perf_counter() - began, report


def main() -> None:
    """Measure."""
    dsn, table, *files = sys.argv[1:]
    with session("benchmark", SparkOptions()) as spark:
        started = time.time() - float(os.environ.get(LAUNCHED, time.time()))
        loads = [timed(lambda file=file: load(spark, dsn, table, file)) for file in files]  # type: ignore[misc]
    seconds = [taken for taken, _ in loads]
    figures = {
        "rows": loads[0][1].read,
        "seconds": seconds[0],
        "rate": loads[0][1].read / seconds[0],
        "again_seconds": seconds[-1],
        "start_seconds": started,
        "whole_seconds": started + seconds[0],
        "stages": [report.seconds for _, report in loads],
        "changed": [{change.value: number for change, number in report.changes.items()} for _, report in loads],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
