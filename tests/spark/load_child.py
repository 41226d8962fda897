"""A load in a process of its own, which waits for advisory lock 1 while it copies: to be killed there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg

from compactory_connectors.postgres.jdbc_url import parse_url
from compactory_connectors.spark.into_table.to_postgres import PostgresTarget
from compactory_connectors.spark.session import session
from compactory_connectors.spark.target import Mode
from tests.spark.conftest import OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(url: str, rows: int, moment: str) -> None:
    with session("child", OPTIONS) as spark:
        load(spark, url, rows, moment)


def load(spark: SparkSession, url: str, rows: int, moment: str) -> None:
    target = PostgresTarget(connection=parse_url(url), table="tariffs", load_id="killed")
    _ = target.columns

    def dawdling(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if moment == "copy":
                with psycopg.connect(url) as connection:
                    connection.execute("SELECT pg_advisory_lock(1)")

    frame = spark.range(rows).selectExpr("'T' || id AS code", "CAST(id AS string) AS note")
    target.compare(frame.mapInArrow(dawdling, frame.schema), Mode.REPLACE)
    target.write()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
