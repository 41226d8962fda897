"""A directory changes its master, from Postgres to Kafka and back: nothing is lost, and both sides agree."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compactory import Directory, GlobalStore
from compactory_connectors.sink.into_table.sink_config import load_sink
from compactory_connectors.sink.into_table.writer import table_sink
from compactory_connectors.source.config.files import parse_connector
from compactory_connectors.source.runtime.source import Source
from compactory_mastered import MasteredWriter, WriteRules
from tests.sink.harness import Bench
from tests.source.workload import wait_until

SMT = "org.apache.kafka.connect.transforms."
BOTH = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
SOURCE = {
    "topic.prefix": "",
    "mode": "timestamp",
    "timestamp.column.name": "updated_at",
    "topic.creation.default.partitions": "2",
    "topic.creation.default.replication.factor": "1",
    "topic.creation.default.cleanup.policy": "compact",
    "transforms": "key,id,own",
    "transforms.key.type": f"{SMT}ValueToKey",
    "transforms.key.fields": "id",
    "transforms.id.type": f"{SMT}ExtractField$Key",
    "transforms.id.field": "id",
    "transforms.own.type": f"{SMT}ReplaceField$Value",
    "transforms.own.exclude": "updated_at",
}
SINK = {
    "insert.mode": "upsert",
    "pk.mode": "record_key",
    "pk.fields": "id",
    "delete.enabled": "true",
    "fields.whitelist": "id,plan",
}


def test_from_postgres_to_kafka_and_back(bench: Bench, tmp_path: Path, unique: Callable[[str], str]) -> None:
    name = unique("tenants").replace("-", "_")
    bench.sql.execute(
        f"CREATE TABLE {name} (id text PRIMARY KEY, plan text, updated_at timestamptz NOT NULL DEFAULT now())"
    )
    bench.sql.execute(f"INSERT INTO {name} SELECT 't' || n, 'old' FROM generate_series(0, 9) n")

    def hand_over() -> int:
        """Let a source send all that is committed; return the number of records in the topic."""
        given = BOTH | SOURCE | {"connection.url": bench.url, "table.whitelist": name}
        Source(parse_connector(json.dumps(given), default_name=name), bench.kafka).run(threading.Event(), once=True)
        return sum(bench.kafka.stable_offsets(bench.kafka.topics([name])[name].all()).values())

    def table() -> dict[str, str]:
        return dict(bench.rows(f"SELECT id, plan FROM {name}"))

    def topic() -> dict[str, str]:
        with GlobalStore(bench.address, [name]) as store:
            return {key: value["plan"] for key, value in store[name].items()}

    hand_over()
    assert topic() == table()
    tenants: Directory[dict[str, Any]] = Directory(name, rules=WriteRules(schema={"required": ["id", "plan"]}))
    with GlobalStore(bench.address, [tenants]) as store, MasteredWriter(store, name) as writer:
        writer.patch("t1", {"plan": "new"})  # over the source's record
        writer.put("t10", {"id": "t10", "plan": "new"})
        writer.delete("t2")
    written = topic()
    assert written == {f"t{n}": "old" for n in (0, *range(3, 10))} | {"t1": "new", "t10": "new"}

    file = tmp_path / f"{bench.name}.json"
    file.write_text(json.dumps(BOTH | SINK | {"connection.url": bench.url, "topics": name}))
    with table_sink(load_sink(file), bench.kafka):
        eventually_at_end(bench, name)
    assert table() == written
    before = sum(bench.kafka.stable_offsets(bench.kafka.topics([name])[name].all()).values())
    assert hand_over() - before <= len(written) + 2  # what the sink has written, once, and a marker in each partition
    assert topic() == written
    bench.sql.execute(f"UPDATE {name} SET plan = 'last', updated_at = now() + '1 ms' WHERE id = 't3'")
    hand_over()
    assert topic() == table() == written | {"t3": "last"}


def eventually_at_end(bench: Bench, topic: str) -> None:
    """Wait until the sink has all records; the log may end with markers of transactions, which are none."""
    ends = bench.kafka.high_watermarks(bench.kafka.topics([topic])[topic].all())
    wait_until(
        lambda: all((bench.offset(topic, part.partition) or 0) >= end - 2 for part, end in ends.items()),
        what=f"the end of {topic}",
    )
