"""Exports and a stream into Delta, in a session that has its package; prints JSON.

Arguments: BOOTSTRAP TOPIC FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from compactory_connectors.spark import export, register
from compactory_connectors.spark.session import SparkOptions, session
from tests.store.topics import send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
COLUMNS = "code string, rate int, zone string"
INTO: dict[str, Any] = {"format": "delta", "partition_by": "zone", "mode": "overwrite"}
CHANGES = [("b", '{"code": "b", "rate": 20, "zone": "north"}'), ("c", None)]


def contents(frame: DataFrame) -> list[list[Any]]:
    return sorted([row.code, row.rate, row.zone, row._key] for row in frame.collect())


def stream_once(spark: SparkSession, address: str, topic: str, folder: Path) -> list[list[Any]]:
    """Append the new records of a topic to a table of Delta; return its rows in the order of offsets."""
    reader = spark.readStream.format("compactory").option("kafka.bootstrap.servers", address)
    changes = reader.option("directory", topic).schema("code string, rate int, _key string, _op string, _offset bigint")
    writer = changes.load().writeStream.format("delta").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).toTable("tariff_changes")
    assert query.awaitTermination(240), "the stream has not ended"
    rows = spark.table("tariff_changes").orderBy("_offset").collect()
    return [[row._key, row._op, row.rate] for row in rows]


def main() -> None:
    address, topic, place = sys.argv[1:]
    folder = Path(place)
    lake = folder / "lake"
    conf = {
        "spark.jars.packages": DELTA,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    results: dict[str, Any] = {}
    with session("delta", SparkOptions(master="local[2]", conf=conf)) as spark:
        register(spark)
        for number in (1, 2):
            report = export(spark, topic, lake, kafka=address, columns=COLUMNS, **INTO)
            table = spark.read.format("delta").load(str(lake))
            results[f"export {number}"] = [report.rows, report.bad, contents(table)]
            results[f"stream {number}"] = stream_once(spark, address, topic, folder)
            if number == 1:
                results["folders"] = sorted(path.name for path in lake.glob("zone=*"))
                send(Producer({"bootstrap.servers": address}), topic, CHANGES)
        results["versions"] = spark.sql(f"DESCRIBE HISTORY delta.`{lake}`").count()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
