"""A CSV file appended to a table by Spark's own JDBC writer: no rules, no comparison, a transaction a task.

Usage: spark.jdbc DSN TABLE FILE [OPTIONS OF THE URL]. Prints rows and seconds as JSON; Spark's start does not count.
"""

from __future__ import annotations

import json
import sys
import time
from urllib.parse import urlsplit

from compactory_connectors.spark.session import SparkOptions, session

SCHEMA = "terminal_id string, acquirer_id string, merchant string, rate decimal(10,2), opened date, note string"


def main() -> None:
    """Measure."""
    dsn, table, file, *options = sys.argv[1:]
    place = urlsplit(dsn)
    url = f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}?{'&'.join(options)}"
    properties = {"user": place.username or "", "driver": "org.postgresql.Driver"}
    with session("benchmark", SparkOptions(postgres_driver=True)) as spark:
        began = time.perf_counter()
        spark.read.csv(file, header=True, schema=SCHEMA, escape='"').write.jdbc(url, table, "append", properties)
        seconds = time.perf_counter() - began
        counted = f"(SELECT count(*) AS rows FROM {table}) AS counted"
        rows = spark.read.jdbc(url, counted, properties=properties).first()
    assert rows is not None
    print(json.dumps({"rows": rows["rows"], "seconds": seconds, "rate": rows["rows"] / seconds}))


if __name__ == "__main__":
    main()
