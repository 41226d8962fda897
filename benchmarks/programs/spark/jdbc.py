"""A CSV file written to a table by Spark's own JDBC writer, without rules: appended, or merged as people do by hand.

Usage: spark.jdbc append|merge DSN TABLE FILE [OPTIONS OF THE URL]. ``merge`` appends to a table beside it and merges
that by one statement. Prints rows, seconds, and those that Spark took to start, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from benchmarks.stage import LAUNCHED
from compactory_connectors.spark.session import SparkOptions, session

SCHEMA = "terminal_id string, acquirer_id string, merchant string, rate decimal(10,2), opened date, note string"
DRIVER = SparkOptions(conf={"spark.jars.packages": "org.postgresql:postgresql:42.7.7"})
STAGED = """
CREATE UNLOGGED TABLE {staged} AS
SELECT terminal_id, acquirer_id, merchant, rate, opened, note FROM {table} LIMIT 0
"""
MERGE = """
MERGE INTO {table} AS old USING {staged} AS new ON old.terminal_id = new.terminal_id
WHEN MATCHED AND (old.acquirer_id, old.merchant, old.rate, old.opened, old.note)
    IS DISTINCT FROM (new.acquirer_id, new.merchant, new.rate, new.opened, new.note) THEN
    UPDATE SET acquirer_id = new.acquirer_id, merchant = new.merchant, rate = new.rate, opened = new.opened,
        note = new.note
WHEN NOT MATCHED THEN INSERT (terminal_id, acquirer_id, merchant, rate, opened, note)
    VALUES (new.terminal_id, new.acquirer_id, new.merchant, new.rate, new.opened, new.note)
"""


def main() -> None:
    """Measure."""
    side, dsn, table, file, *options = sys.argv[1:]
    place = urlsplit(dsn)
    url = f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}?{'&'.join(options)}"
    properties = {"user": place.username or "", "driver": "org.postgresql.Driver"}
    names = {"table": sql.Identifier(table), "staged": sql.Identifier(f"{table}_staged")}
    with session("benchmark", DRIVER) as spark, psycopg.connect(dsn, autocommit=True) as connection:
        started = time.time() - float(os.environ.get(LAUNCHED, time.time()))
        began = time.perf_counter()
        rows = spark.read.csv(file, header=True, schema=SCHEMA, escape='"')
        if side == "merge":
            connection.execute(sql.SQL(STAGED).format(**names))
            rows.write.jdbc(url, f"{table}_staged", "append", properties)
            connection.execute(sql.SQL(MERGE).format(**names))
            connection.execute(sql.SQL("DROP TABLE {staged}").format(**names))
        else:
            rows.write.jdbc(url, table, "append", properties)
        seconds = time.perf_counter() - began
        counted = connection.execute(sql.SQL("SELECT count(*) FROM {table}").format(**names)).fetchone()
    assert counted is not None
    figures = {"rows": counted[0], "seconds": seconds, "rate": counted[0] / seconds, "start_seconds": started}
    print(json.dumps(figures | {"whole_seconds": started + seconds}))


if __name__ == "__main__":
    main()
