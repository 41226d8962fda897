"""The page of sinks: partitions with offsets and lag, and records that were set aside."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from starlette.responses import Response

from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.kafka.topic_reader import records_at
from compactory_connectors.postgres.pausing import paused
from compactory_connectors.sink import operators
from compactory_connectors.sink.operators import failed_records
from compactory_connectors.sink.statements import PartitionOffset, open_sink, partition_offsets

from ..call import Call, whole_number
from ..rendering import counted

__all__ = ["change_sinks", "sinks_page"]

_SHOWN = 200


async def sinks_page(call: Call) -> Response:
    """Return the partitions of every sink, and failed records."""
    call.session.demand_read()

    def read(connection: psycopg.Connection[Any]) -> tuple[Any, Any, Any]:
        paused_names = [item.name for item in paused(connection, "sink")]
        return partition_offsets(connection, None), failed_records(connection, limit=_SHOWN), paused_names

    offsets, records, paused_names = await call.parts.operators.in_database(read, open_sink)
    lags: Mapping[Partition, tuple[int, float]] = {}
    problem = None
    try:
        if offsets:
            lags = await call.parts.operators.in_kafka(lambda kafka: _lags(kafka, offsets))
    except CompactoryError as error:
        problem = str(error)
    rows = [(item, *lags.get(Partition(item.topic, item.partition), (None, None))) for item in offsets]
    return call.page(
        "sinks.html", rows=rows, records=records, problem=problem, shown=_SHOWN,
        names=sorted({item.sink for item in offsets}), paused=paused_names,
    )  # fmt: skip


async def change_sinks(call: Call) -> Response:
    """Retry or drop failed records, or set an offset."""
    call.session.demand_admin()
    verb, sink, topic = call.field("act"), call.field("sink"), call.field("topic")
    partition = whole_number("partition", call.field("partition"))
    if sink is None:
        raise ConfigError("name a sink")
    if verb == "set-offset":
        if topic is None or partition is None:
            raise ConfigError("name a topic and a partition")
        return await _set_offset(call, sink, Partition(topic, partition))
    if verb not in ("retry", "drop"):
        raise ConfigError("choose retry, drop or set-offset")
    choice = (sink, topic, partition, whole_number("offset", call.field("offset")))
    function = operators.retry if verb == "retry" else operators.drop
    count = await call.parts.operators.in_database(lambda sql: function(sql, *choice, by=call.by), open_sink)
    return call.back("/sinks", f"{verb}: {counted(count, 'record')}.")


async def _set_offset(call: Call, sink: str, partition: Partition) -> Response:
    position = call.field("offset") or ""
    kafka = await call.parts.operators.in_kafka(lambda kafka: kafka)
    offset = await call.parts.operators.in_database(
        lambda sql: operators.set_position(sql, kafka, sink, partition, position, by=call.by), open_sink
    )
    name = f"{partition.topic}-{partition.partition}"
    return call.back("/sinks", f"set-offset: sink {sink} continues at offset {offset:,} of {name}.")


def _lags(kafka: Kafka, offsets: Sequence[PartitionOffset]) -> dict[Partition, tuple[int, float]]:
    """Return how many records a partition lags, and how many seconds old the first of them is."""
    positions = {Partition(item.topic, item.partition): item.offset for item in offsets if item.offset is not None}
    ends = kafka.stable_offsets(positions)
    first = records_at(kafka, {part: positions[part] for part, end in ends.items() if end > positions[part]})
    read_at = time.time()
    ages = {part: max(0.0, read_at - message.timestamp()[1] / 1000) for part, message in first.items()}
    return {part: (max(0, end - positions[part]), ages.get(part, 0.0)) for part, end in ends.items()}
