"""The bytes of keys and values are those that the real JDBC source connector wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from compactory_connectors.postgres.watched_connection import connect
from compactory_connectors.source.config.files import load_connector
from compactory_connectors.source.mapping.row_plan import compile_plan
from compactory_connectors.source.postgres.chunk_reader import raw_rows
from tests.source.described import describe_tables

GOLDEN = Path(__file__).parent


@pytest.mark.parametrize("name", ["plain", "seed-smts"])
def test_bytes_are_those_of_the_real_connector(name: str, database: str) -> None:
    expected: dict[str, Any] = json.loads((GOLDEN / f"{name}.topic.json").read_text())
    config = load_connector(GOLDEN / f"{name}.config.json")
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute((GOLDEN / "all_types.sql").read_text())
    with connect(conninfo_to_dict(database)) as connection:
        (table,) = describe_tables(connection, config)
        plan = compile_plan(config, table)
        columns = sql.SQL(", ").join(map(sql.Identifier, plan.columns))
        rows = raw_rows(connection.execute(sql.SQL("SELECT {} FROM all_types ORDER BY id").format(columns)))

    assert plan.topic == expected["topic"]
    records = [(record["key"] and record["key"].encode(), record["value"].encode()) for record in expected["records"]]
    assert [plan.render(row) for row in rows] == records
    assert [plan.render_key(row) for row in rows] == [key for key, _ in records]
    assert [warning.split("column ")[1] for warning in plan.warnings] == [
        "c_textarr of type _text is left out: not supported; compactory.types=all keeps it",
        "c_intarr of type _int4 is left out: not supported; compactory.types=all keeps it",
        "c_inet of type inet is left out: not supported; compactory.types=all keeps it",
        "c_interval of type interval is left out: not supported; compactory.types=all keeps it",
    ]
    assert plan.key_columns == (("id",) if name == "seed-smts" else ())
