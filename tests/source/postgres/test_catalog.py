"""Queries as the server describes them."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from compactory.errors import ConfigError
from compactory_connectors.connect.record.schema import Schema
from compactory_connectors.postgres.watched_connection import connect
from compactory_connectors.source.mapping.column_type import column_cell
from compactory_connectors.source.postgres.catalog import describe_query


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SELECT 'hunter2'::int", None),
        ("SELECT 1 WHERE 'a' = hunter2'", None),
        ("SELECT 1 AS a WHERE 'a' = hunter2", "hunter2"),
        ("SELECT hunters FROM (SELECT 1 AS hunter2) AS t", "hunter"),
    ],
)
def test_a_refused_query_shows_names_of_columns_and_masked_nothing(
    database: str, text: str, name: str | None, masked: bool
) -> None:
    with connect(conninfo_to_dict(database)) as connection, pytest.raises(ConfigError, match="SQLSTATE") as refused:
        describe_query(connection, text, masked=masked)
    shown = str(refused.value)
    assert ("hunter" in shown) == (name is not None and not masked), shown


def test_a_query_knows_what_can_not_be_null(database: str) -> None:
    with connect(conninfo_to_dict(database)) as connection:
        connection.execute(
            "CREATE DOMAIN given AS numeric(5,2) NOT NULL; CREATE TABLE t (a int, b int NOT NULL, c given)"
        )
        columns = describe_query(connection, "SELECT a, b, c, b + 1 AS d FROM t").columns
    assert [column.not_null for column in columns] == [False, True, True, False]
    cell = column_cell(columns[2])
    assert cell is not None
    assert cell.schema == Schema.decimal(2, 5)
