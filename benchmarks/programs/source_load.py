"""A first load by a source: the connector of the article, from an empty offset to the end.

Usage: source_load DSN BOOTSTRAP. Makes a topic of its own. Prints rows, seconds, processor time and most
memory as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
import uuid
from pathlib import Path

import structlog

from compactory.kafka.client import Kafka
from compactory_connectors.source.config.files import parse_connector
from compactory_connectors.source.runtime.source import Source

CONNECTOR = Path(__file__).parents[2] / "examples" / "connectors" / "terminal_acquirer.json"


def main() -> None:
    dsn, bootstrap = sys.argv[1:3]
    prefix = f"load-{uuid.uuid4().hex[:8]}-"
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    own = {"connection.url": dsn, "connection.user": "postgres", "connection.password": "", "topic.prefix": prefix}
    written = json.dumps(json.loads(CONNECTOR.read_text()) | own)
    source = Source(parse_connector(written, default_name=prefix, environment={}), Kafka(bootstrap))
    began, used = time.perf_counter(), time.process_time()
    source.run(threading.Event(), once=True)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    (table,) = source.status().tables
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rows": table.rows_total, "seconds": seconds, "cpu": cpu, "rss_mb": memory}))


if __name__ == "__main__":
    main()
