"""A stream into a file for each attempt of a micro-batch; as a program, which a test kills: BOOTSTRAP TOPIC FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from compactory_connectors.spark import register
from compactory_connectors.spark.session import session
from tests.spark.conftest import OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Stopped(Exception):
    """The sink failed on purpose, after it had written."""


def follow(spark: SparkSession, address: str, topic: str, folder: Path, fail_at: int | None = None) -> None:
    """Read what is available, in small micro-batches; each attempt's file is whole or not there.

    The sink raises once it has written micro-batch ``fail_at``, before Spark takes that for done.
    """
    attempt = uuid4().hex

    def write(frame: DataFrame, batch: int) -> None:
        draft = folder / f"{batch}-{attempt}.draft"
        draft.write_text(json.dumps([list(row) for row in frame.collect()]))
        draft.rename(draft.with_suffix(".json"))
        if batch == fail_at:
            raise Stopped

    register(spark)
    reader = spark.readStream.format("compactory").option("kafka.bootstrap.servers", address)
    reader = reader.options(topic=topic, maxOffsetsPerTrigger="100")
    frame = reader.schema("_partition int, _offset bigint, _op string, _key string, n bigint").load()
    out = frame.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
    out.trigger(availableNow=True).start().awaitTermination(200)


if __name__ == "__main__":
    with session("stream", OPTIONS) as started:
        follow(started, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
