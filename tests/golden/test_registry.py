"""Avro and JSON Schema: schemas and bytes are those that Confluent's AvroData and JsonSchemaData made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from compactory_connectors.connect.converters.avro_converter import AvroConverter
from compactory_connectors.connect.converters.avro_schema import AvroNames, avro_schema
from compactory_connectors.connect.converters.json_schema_converter import json_schema
from compactory_connectors.connect.converters.schema_registry import Registry, Subjects
from compactory_connectors.connect.record.record import StructNode
from compactory_connectors.connect.record.schema import Field, Schema, Type
from compactory_connectors.source.mapping.column_type import column_cell
from compactory_connectors.source.postgres.catalog import Column
from tests.golden.test_columns import GOLDEN, Rows, options, tables

__all__ = ["tables"]

MADE = [json.loads(line) for line in (GOLDEN / "registry.jsonl").read_text().splitlines()]
SUBJECTS = {"key": Subjects.TOPIC, "value": Subjects.TOPIC}


def test_avro_and_json_schemas(tables: Mapping[str, tuple[list[Column], Rows]]) -> None:
    converter = AvroConverter(Registry(url="mock://golden", strategies=SUBJECTS), AvroNames())
    compared = 0
    for golden in MADE:
        columns, rows = tables[golden["table"]]
        cells = [cell for column in columns if (cell := column_cell(column, options(golden["options"])))]
        fields = tuple(Field(cell.column, cell.schema) for cell in cells)
        node = StructNode(Schema(type=Type.STRUCT, name=f"golden.{golden['table']}", fields=fields), tuple(cells))
        place = f"{golden['table']} under {golden['options']}"
        assert avro_schema(node.schema, AvroNames()) == golden["avro"], place
        assert unordered(json_schema(node.schema)) == unordered(golden["json_schema"]), place
        render = converter.at(f"{golden['table']}-{compared}", "value").compile(node, {"id": 0, "c": 1})
        for raw, expected in zip(rows, golden["rows"], strict=True):
            if expected is not None:
                written = render(raw)
                assert written is not None
                assert written[0] == 0
                assert written[5:].hex() == expected, f"{place}, {raw[1]!r}"
                compared += 1
    assert compared > 1_000


def unordered(schema: Any) -> Any:
    """Without the order of alternatives, which hangs on Java's hash tables."""
    if isinstance(schema, list):
        return [unordered(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: unordered(value) for name, value in schema.items()}
    if "oneOf" in made:
        made["oneOf"].sort(key=lambda item: json.dumps(item, sort_keys=True))
    return made
