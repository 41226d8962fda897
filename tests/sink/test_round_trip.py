"""Source → topic → sink: the same table, over column types, NULLs, Unicode, deletions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compactory_connectors.sink.table.sink_config import load_sink
from compactory_connectors.sink.table.writing import table_sink
from compactory_connectors.source.config.files import parse_connector
from compactory_connectors.source.run.source import Source
from tests.sink.harness import Bench

COLUMNS = (
    "id int8 PRIMARY KEY, i2 int2, i4 int4, r real, d double precision, n numeric(12,3), t text, v varchar(20),"
    " b boolean, y bytea, da date, ti time(3), ts timestamp(3), tz timestamptz(3), j jsonb, u uuid,"
    " is_active boolean NOT NULL DEFAULT true"
)
ROWS = """
INSERT INTO {} VALUES
 (1, 1, 2, 1.5, 0.1, 12.345, 'Ä\t\\n"€😀', 'x', true,
  '\\x00ff', '2024-02-29', '23:59:59.999', '2024-02-29 12:00:00.123',
  '2024-02-29 12:00:00.123+02', '{{"a": [1, null]}}', '123e4567-e89b-12d3-a456-426614174000'),
 (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (3, -32768, -2147483648, -1e-30, 1e300, -0.001, '', '', false, '', '1970-01-01', '00:00', '1969-12-31 23:59:59.999',
  '1969-12-31 23:59:59.999Z', '1', '00000000-0000-0000-0000-000000000000')
"""
ALL = {"compactory.types": "all"}
JSON = "org.apache.kafka.connect.json.JsonConverter"
AVRO = "io.confluent.connect.avro.AvroConverter"
SCHEMA = "io.confluent.connect.json.JsonSchemaConverter"


@pytest.mark.parametrize("converter", [JSON, "plain", AVRO, SCHEMA])
def test_the_table_at_the_end_is_the_table_at_the_beginning(
    bench: Bench, tmp_path: Path, unique: Callable[[str], str], converter: str
) -> None:
    name = unique("types").replace("-", "_")
    bench.sql.execute(f"CREATE TABLE {name} ({COLUMNS}); CREATE TABLE copied (LIKE {name} INCLUDING ALL)")
    bench.sql.execute(ROWS.format(name).encode())
    value = {"value.converter": JSON if converter == "plain" else converter}
    if converter == "plain":
        value |= {"value.converter.schemas.enable": "false", "value.converter.decimal.format": "NUMERIC"}
    if converter in {AVRO, SCHEMA}:
        value |= {"value.converter.schema.registry.url": f"mock://{name}"}
    smt = "org.apache.kafka.connect.transforms."
    source = {
        "name": name,
        "connection.url": bench.url,
        "mode": "bulk",
        "table.whitelist": name,
        "topic.prefix": "",
        "topic.creation.default.partitions": "1",
        "numeric.mapping": "none",
        "transforms": "key,id",
        "transforms.key.type": f"{smt}ValueToKey",
        "transforms.key.fields": "id",
        "transforms.id.type": f"{smt}ExtractField$Key",
        "transforms.id.field": "id",
        "key.converter": "org.apache.kafka.connect.converters.LongConverter",
        **value,
        **ALL,
    }
    Source(parse_connector(json.dumps(source), default_name=name), bench.kafka).run(threading.Event(), once=True)
    file = tmp_path / "sink.json"
    file.write_text(
        json.dumps(
            {
                "name": bench.name,
                "topics": name,
                "connection.url": bench.url,
                "table.name.format": "copied",
                "insert.mode": "upsert",
                "pk.mode": "record_key",
                "pk.fields": "id",
                "delete.enabled": "true",
                "key.converter": "org.apache.kafka.connect.converters.LongConverter",
                **value,
            }
        )
    )
    sink = table_sink(load_sink(file), bench.kafka)
    with sink:
        bench.wait_for_end(name)
        assert bench.rows("SELECT * FROM copied ORDER BY id") == bench.rows(f"SELECT * FROM {name} ORDER BY id")
