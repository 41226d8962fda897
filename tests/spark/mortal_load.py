"""A load into a topic in a process of its own, which is killed when its transaction has every record and is open.

python -m tests.spark.mortal_load BOOTSTRAP TOPIC ROWS
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from compactory import Directory
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.producer_record import ProducerRecord
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.spark.into_topic.to_kafka import KafkaTarget
from compactory_connectors.spark.session import session
from compactory_connectors.spark.target import Mode
from tests.spark.conftest import OPTIONS

TYPES = {"id": "bigint", "name": "text"}


def main(bootstrap: str, topic: str, rows: int) -> None:
    publish = Publisher.publish

    def publish_and_die(publisher: Publisher, topic: str, records: Iterable[ProducerRecord], *others: Any) -> None:
        publish(publisher, topic, _followed_by_death(publisher, records), *others)

    Publisher.publish = publish_and_die  # type: ignore[method-assign]
    directory = Directory(topic)
    with session("mortal", OPTIONS) as spark:
        target = KafkaTarget(
            spark=spark, kafka=Kafka(bootstrap), directory=directory, connector=None, types=TYPES, key=["id"]
        )
        target.compare(spark.range(rows).selectExpr("id", "concat('first ', id) AS name"), Mode.REPLACE)
        target.write()


def _followed_by_death(publisher: Publisher, records: Iterable[ProducerRecord]) -> Iterator[ProducerRecord]:
    yield from records
    publisher.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
