"""Transactions get the acquirer of their terminal; those of unknown terminals go into a folder of their own.

Usage: enrich.py FOLDER. Kafka is the one of COMPACTORY_KAFKA. A run reads what there is and ends; the next one goes on
from there.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from compactory_connectors.spark import enrich, register

TRANSACTION = "terminal_id string, amount decimal(12,2), _timestamp timestamp"
TERMINAL = "acquirerId string"


def run(spark: SparkSession, folder: str) -> dict[str, Any]:
    """Enrich the transactions that came since the last run; return how many there were, and how many missed."""
    register(spark)
    reader = spark.readStream.format("compactory").option("kafka.bootstrap.servers", os.environ["COMPACTORY_KAFKA"])
    transactions = reader.option("topic", "transactions").schema(TRANSACTION).load()
    known = enrich(transactions, directory="terminal_acquirer", on="terminal_id", schema=TERMINAL, active="isActive")

    def write(frame: DataFrame, batch: int) -> None:
        """Write a micro-batch; one that is repeated overwrites what its first attempt left."""
        frame.persist()
        for name, rows in (("enriched", frame.where("_found")), ("misses", frame.where("NOT _found"))):
            rows.drop("_found").write.mode("overwrite").parquet(f"{folder}/{name}/batch={batch}")
        frame.unpersist()

    out = known.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
    query = out.trigger(availableNow=True).start()
    query.awaitTermination()
    counts = [progress.observedMetrics.get("enrich_terminal_acquirer") for progress in query.recentProgress]
    return {name: sum(count[name] for count in counts if count is not None) for name in ("rows", "misses")}


if __name__ == "__main__":
    started = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    print(run(started, sys.argv[1]))
