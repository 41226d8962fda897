"""A stream of files into a table; as a program, which a test kills: URL FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from compactory_connectors.spark import register
from compactory_connectors.spark.session import session
from tests.spark.conftest import OPTIONS
from tests.spark.test_stream_writer import Stream

if __name__ == "__main__":
    with session("stream", OPTIONS) as spark:
        register(spark)
        stream = Stream(spark, Path(sys.argv[2]), url=sys.argv[1], table="tariffs")
        stream.run(stream.rows("code", "rate"))
