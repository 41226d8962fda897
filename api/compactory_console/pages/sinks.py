"""The page of sinks: partitions with offsets and lag, and records that were set aside."""

from __future__ import annotations

from typing import Any

import psycopg
from starlette.responses import Response

from compactory.errors import CompactoryError, ConfigError
from compactory.records import Partition
from compactory_connectors.postgres.pausing import paused
from compactory_connectors.sink import operators
from compactory_connectors.sink.offsets import open_sink, partition_offsets
from compactory_connectors.sink.operators import failed_records

from ..call import Call, whole_number

__all__ = ["change_sinks", "sinks_page"]

_SHOWN = 200


async def sinks_page(call: Call) -> Response:
    """Return the partitions of every sink, and failed records."""
    call.session.demand_read()

    def read(connection: psycopg.Connection[Any]) -> tuple[Any, Any, Any]:
        paused_names = [item.name for item in paused(connection, "sink")]
        return partition_offsets(connection, None), failed_records(connection, limit=_SHOWN), paused_names

    offsets, records, paused_names = await call.parts.operators.in_database(read, open_sink)
    places = {Partition(item.topic, item.partition) for item in offsets}
    ends: dict[Partition, int] = {}
    problem = None
    try:
        ends = await call.parts.operators.in_kafka(lambda kafka: kafka.stable_offsets(places) if places else {})
    except CompactoryError as error:
        problem = str(error)
    rows = [(item, _lag(ends.get(Partition(item.topic, item.partition)), item.offset)) for item in offsets]
    return call.page(
        "sinks.html", rows=rows, records=records, problem=problem, shown=_SHOWN,
        names=sorted({item.sink for item in offsets}), paused=paused_names,
    )  # fmt: skip


async def change_sinks(call: Call) -> Response:
    """Retry or drop failed records, pause or resume a sink."""
    call.session.demand_admin()
    verb, sink = call.field("act"), call.field("sink")
    if sink is None:
        raise ConfigError("name a sink")
    if verb in ("pause", "resume"):
        switch = operators.pause if verb == "pause" else operators.resume
        await call.parts.operators.in_database(lambda sql: switch(sql, sink, by=call.by), open_sink)
        return call.back("/sinks", f"{verb}: sink {sink}.")
    if verb not in ("retry", "drop"):
        raise ConfigError("choose retry or drop")
    choice = (
        sink,
        call.field("topic"),
        whole_number("partition", call.field("partition")),
        whole_number("offset", call.field("offset")),
    )
    function = operators.retry if verb == "retry" else operators.drop
    count = await call.parts.operators.in_database(lambda sql: function(sql, *choice, by=call.by), open_sink)
    return call.back("/sinks", f"{verb}: {count:,} records.")


def _lag(end: int | None, offset: int) -> int | None:
    return None if end is None else max(0, end - offset)
