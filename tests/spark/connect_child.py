"""A session of Spark Connect: reads, writes, streams, enriches, loads and exports, without py4j; prints JSON.

Arguments: BOOTSTRAP TOPIC FOLDER URL, of a database with the table tariffs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from compactory_connectors.spark import enrich, export, infer_schema, load, register
from compactory_connectors.spark.report import LoadRefused

SCHEMA = "n bigint, _key string"
TARIFFS = "code string, rate string, note string"


def main() -> None:
    address, topic, folder, url = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        reader = {"kafka.bootstrap.servers": address, "directory": topic}
        found = spark.read.format("compactory").options(**reader).schema(SCHEMA).load()  # before register()
        keys = sorted((row._key, row.n) for row in found.collect())
        register(spark)
        filtered = spark.read.format("compactory").options(**reader).load().where("_key = 'b'").count()
        changes = spark.readStream.format("compactory").options(**reader).schema(SCHEMA).load()
        out = changes.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        out.option("path", f"{folder}/changes").trigger(availableNow=True).start().awaitTermination(120)
        rows = spark.createDataFrame([("a",), ("none",)], "k string")
        loaded = fill_table(spark, url, Path(folder))
        print(
            json.dumps(
                {
                    "keys": keys,
                    "filtered": filtered,
                    "schema": infer_schema(spark, topic, kafka=address).simpleString(),
                    "changes": spark.read.parquet(f"{folder}/changes").count(),
                    "exported": export(spark, topic, f"{folder}/export", kafka=address).rows,
                    "enriched": [row._found for row in enrich(rows, topic, "k", kafka=address).orderBy("k").collect()],
                    **loaded,
                }
            )
        )
    finally:
        spark.stop()


def fill_table(spark: SparkSession, url: str, folder: Path) -> dict[str, Any]:
    """Write, stream and load rows into the table; what the load reports."""
    options = {"url": url, "table": "tariffs"}
    written = spark.createDataFrame([("a", "1.50", "written"), ("b", "2.00", "written")], TARIFFS)
    written.write.format("compactory").mode("append").options(**options).save()
    (folder / "lines").mkdir()
    (folder / "lines" / "1.json").write_text('{"code": "b", "rate": "3.00", "note": "streamed"}')
    streamed = spark.readStream.schema(TARIFFS).json(str(folder / "lines"))
    out = streamed.writeStream.format("compactory").options(**options).trigger(availableNow=True)
    out.option("checkpointLocation", str(folder / "tariffs")).start().awaitTermination(120)
    (folder / "good.csv").write_text("code,rate,note\na,1.50,written\nc,5.00,loaded\nb,3.00,streamed\n")
    (folder / "bad.csv").write_text("code,rate,note\nd,much,loaded\n")
    report = load(spark, str(folder / "good.csv"), "tariffs", url)
    try:
        load(spark, str(folder / "bad.csv"), "tariffs", url)
    except LoadRefused as error:
        return {"loaded": report.changes, "refused": str(error).partition(":")[0]}
    raise AssertionError("not refused")


if __name__ == "__main__":
    main()
