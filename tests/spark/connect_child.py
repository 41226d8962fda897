"""A session of Spark Connect: reads, streams, enriches, exports; prints JSON. Arguments: BOOTSTRAP TOPIC FOLDER."""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from compactory_connectors.spark import enrich, export, infer_schema, register

SCHEMA = "n bigint, _key string"


def main() -> None:
    address, topic, folder = sys.argv[1:]
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
        print(
            json.dumps(
                {
                    "keys": keys,
                    "filtered": filtered,
                    "schema": infer_schema(spark, topic, kafka=address).simpleString(),
                    "changes": spark.read.parquet(f"{folder}/changes").count(),
                    "exported": export(spark, topic, f"{folder}/export", kafka=address).rows,
                    "enriched": [row._found for row in enrich(rows, topic, "k", kafka=address).orderBy("k").collect()],
                }
            )
        )
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
