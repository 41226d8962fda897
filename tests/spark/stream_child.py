"""A stream into a file for each attempt of a micro-batch, which a test kills: BOOTSTRAP TOPIC FOLDER."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from compactory_connectors.spark import register
from compactory_connectors.spark.session import session
from tests.spark.conftest import OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main() -> None:
    """Read what is available, in small micro-batches; the file is whole or not there."""
    address, topic, path = sys.argv[1:]

    def write(frame: DataFrame, batch: int) -> None:
        draft = Path(path) / f"{batch}-{os.getpid()}.draft"
        draft.write_text(json.dumps([list(row) for row in frame.collect()]))
        draft.rename(draft.with_suffix(".json"))

    with session("stream", OPTIONS) as spark:
        register(spark)
        reader = spark.readStream.format("compactory").option("kafka.bootstrap.servers", address)
        reader = reader.options(topic=topic, maxOffsetsPerTrigger="100")
        frame = reader.schema("_partition int, _offset bigint, _op string, _key string, n bigint").load()
        out = frame.writeStream.foreachBatch(write).option("checkpointLocation", f"{path}/checkpoint")
        out.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
