"""The types that the real connector leaves out, under ``compactory.types=all``, against Postgres' own view of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from compactory.errors import ConfigError
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.json_value import schema_json
from compactory_connectors.connect.converters.string_converter import StringConverter
from compactory_connectors.connect.record.column_value import array_parts, composite_parts, hstore_items
from compactory_connectors.connect.record.record import RowError, StructNode
from compactory_connectors.connect.record.schema import Field, Schema, Type
from compactory_connectors.postgres.watched_connection import connect
from compactory_connectors.source.config.column_options import ColumnOptions, ColumnTypes, NumericMapping
from compactory_connectors.source.mapping.column_node import column_node, column_warnings
from compactory_connectors.source.postgres.catalog import Column, describe_query, shapes_of
from compactory_connectors.source.postgres.chunk_reader import raw_rows
from compactory_sql import query

ALL = ColumnOptions(types=ColumnTypes.ALL)

TYPES = """
CREATE EXTENSION hstore; CREATE EXTENSION citext;
CREATE TYPE mood AS ENUM ('sad', 'not "ok"');
CREATE DOMAIN positive AS numeric(6,2) CHECK (value > 0);
CREATE TYPE address AS (street text, "number" int);
CREATE TYPE person AS (name text, home address, tags text[], worth positive);
"""

COLUMNS: Mapping[str, tuple[str, str, str, str]] = {
    # name: type, value, JSON, schema without "optional" and "field"
    "a_int": ("int[]", "'{1,NULL,-3}'", "[1,null,-3]", '{"type":"array","items":{"type":"int32","optional":true}'),
    "a_empty": ("int[]", "'{}'", "[]", '{"type":"array"'),
    "a_bounds": ("int[]", "'[0:1]={7,8}'", "[7,8]", '{"type":"array"'),
    "a_two": ("int[][]", "'{{1,2},{3,4}}'", "[[1,2],[3,4]]", '{"type":"array","items":{"type":"array"'),
    "a_text": (
        "text[]",
        """ARRAY['a,b', 'c"d', 'e\\f', '', 'NULL', NULL, '{}', E'g\nh', '😀']""",
        '["a,b","c\\"d","e\\\\f","","NULL",null,"{}","g\\nh","\\uD83D\\uDE00"]',
        '{"type":"array","items":{"type":"string","optional":true}',
    ),
    "a_numeric": (
        "numeric(10,2)[]",
        "'{12345.67}'",
        '["EtaH"]',
        '{"type":"array","items":{"type":"bytes","optional":true,"name":"org.apache.kafka.connect.data.Decimal"',
    ),
    "a_domain": ("positive[]", "'{1.5}'", '["AJY="]', '{"type":"array","items":{"type":"bytes"'),
    "a_mood": ("mood[]", """'{sad,"not \\"ok\\""}'""", '["sad","not \\"ok\\""]', '{"type":"array"'),
    "a_time": ("timestamptz[]", "'{2024-01-01 00:00:00.5+00}'", "[1704067200500]", '{"type":"array"'),
    "a_bool": ("bool[]", "'{t,f}'", "[true,false]", '{"type":"array","items":{"type":"boolean"'),
    "a_bytea": ("bytea[]", "ARRAY['\\x00ff'::bytea]", '["AP8="]', '{"type":"array","items":{"type":"bytes"'),
    "a_box": ("box[]", "'{(1,1),(0,0);(2,2),(0,0)}'", '["(1,1),(0,0)","(2,2),(0,0)"]', '{"type":"array"'),
    "a_address": (
        "address[]",
        """ARRAY[ROW('a, "b"', 7)::address, NULL, ROW(NULL, NULL)::address]""",
        '[{"street":"a, \\"b\\"","number":7},null,{"street":null,"number":null}]',
        '{"type":"array","items":{"type":"struct"',
    ),
    "person": (
        "person",
        "ROW('N', ROW('S (x)', 1), ARRAY['t','u v'], 2)::person",
        '{"name":"N","home":{"street":"S (x)","number":1},"tags":["t","u v"],"worth":"AMg="}',
        '{"type":"struct","fields":[{"type":"string","optional":true,"field":"name"}',
    ),
    "hollow": (
        "person",
        "ROW(NULL, NULL, NULL, NULL)::person",
        '{"name":null,"home":null,"tags":null,"worth":null}',
        '{"type":"struct"',
    ),
    "h": (
        "hstore",
        """'a=>1, "b c"=>NULL, "d\\"e"=>"f\\\\g"'""",
        '{"a":"1","b c":null,"d\\"e":"f\\\\g"}',
        '{"type":"map","keys":{"type":"string","optional":false},"values":{"type":"string","optional":true}',
    ),
    "ci": ("citext", "'AbC'", '"AbC"', '{"type":"string"'),
    "vb": ("varbit", "B'0101'", '"0101"', '{"type":"string"'),
    "iv": ("interval", "'1 mon -2 days 03:04:05.6'", '"1 mon -2 days +03:04:05.6"', '{"type":"string"'),
    "ip": ("inet", "'10.0.0.1/8'", '"10.0.0.1/8"', '{"type":"string"'),
    "net": ("cidr", "'10.0.0.0/8'", '"10.0.0.0/8"', '{"type":"string"'),
    "mac": ("macaddr", "'08-00-2b-01-02-03'", '"08:00:2b:01:02:03"', '{"type":"string"'),
    "r": ("int4range", "'[1,5]'", '"[1,6)"', '{"type":"string"'),
    "rt": ("tstzrange", "'[2024-01-01 00:00+00,)'", '"[\\"2024-01-01 00:00:00+00\\",)"', '{"type":"string"'),
    "p": ("point", "'(1,2.5)'", '"(1,2.5)"', '{"type":"string"'),
    "ts": ("tsvector", "'a:1 b'", "\"'a':1 'b'\"", '{"type":"string"'),
    "x": ("xid8", "'123'", '"123"', '{"type":"string"'),
    "plain": ("int", "5", "5", '{"type":"int32"'),
}


@pytest.fixture
def table(database: str) -> tuple[dict[str, Column], list[Any]]:
    """The table's columns with their shapes, a row of values and a row of NULLs."""
    names = [sql.Identifier(name).as_string() for name in COLUMNS]
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(TYPES)
        owner.execute("SET TimeZone = 'UTC'")
        columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in zip(names, COLUMNS.values(), strict=True))
        owner.execute(f"CREATE TABLE odd ({columns})".encode())
        owner.execute(f"INSERT INTO odd VALUES ({', '.join(value for _, value, *_ in COLUMNS.values())})".encode())
        owner.execute("INSERT INTO odd VALUES (NULL)")
    with connect(conninfo_to_dict(database)) as connection:
        cursor = connection.cursor(row_factory=tuple_row)
        (oid,) = cursor.execute("SELECT 'odd'::regclass::oid").fetchone() or (None,)
        place = {"oid": oid}
        declared = cursor.execute(query("shape/columns"), place).fetchall()
        types = {"types": [row[1] for row in declared]}
        shapes = shapes_of(declared, cursor.execute(query("shape/types"), types).fetchall())
        fields = ("name", "type", "type_schema", "type_kind", "typmod", "not_null", "declared")
        described = [
            Column(**dict(zip(fields, row, strict=False))).made_of(shapes[row[0]])
            for row in cursor.execute(query("catalog/columns"), place).fetchall()
        ]
        return {column.name: column for column in described}, raw_rows(connection.execute("SELECT * FROM odd"))


def test_every_type_has_a_schema_and_a_value(table: tuple[dict[str, Column], list[Any]]) -> None:
    columns, (values, nulls) = table
    positions = {name: number for number, name in enumerate(columns)}
    converter = JsonConverter(schemas_enable=False)
    for name, (_, _, in_json, schema) in COLUMNS.items():
        node = column_node(columns[name], ALL)
        assert node is not None
        assert schema_json(node.schema).decode().startswith(schema), name
        assert node.schema.optional
        render = converter.compile(node, positions)
        assert (render(values), render(nulls)) == (in_json.encode(), b"null"), name


def test_a_record_of_everything_in_json_and_as_text(table: tuple[dict[str, Column], list[Any]]) -> None:
    columns, (values, nulls) = table
    positions = {name: number for number, name in enumerate(columns)}
    nodes = [node for column in columns.values() if (node := column_node(column, ALL)) is not None]
    fields = tuple(Field(name, node.schema) for name, node in zip(columns, nodes, strict=True))
    record = StructNode(Schema(type=Type.STRUCT, name="odd", fields=fields), tuple(nodes))
    written = JsonConverter(schemas_enable=True).compile(record, positions)(values)
    assert written is not None
    payload = json.loads(written)["payload"]
    assert payload == {name: json.loads(in_json) for name, (_, _, in_json, _) in COLUMNS.items()}
    without = [name for name in columns if name != "a_bytea"]
    picked = StructNode(
        Schema(type=Type.STRUCT, fields=tuple(item for item in fields if item.name in without)),
        tuple(node for item, node in zip(fields, nodes, strict=True) if item.name in without),
    )
    text = StringConverter().compile(picked, positions)
    assert text(nulls) == b"Struct{}"
    shown = text(values)
    assert shown is not None
    assert b"person=Struct{name=N,home=Struct{street=S (x),number=1},tags=[t, u v],worth=2.00}" in shown
    assert b"hollow=Struct{}" in shown
    assert b'h={a=1, b c=null, d"e=f\\g}' in shown
    assert b"a_two=[[1, 2], [3, 4]]" in shown
    assert b'a_address=[Struct{street=a, "b",number=7}, null, Struct{}]' in shown


def test_the_result_of_a_query(table: tuple[dict[str, Column], list[Any]], database: str) -> None:
    columns, (values, _) = table
    with connect(conninfo_to_dict(database)) as connection:
        found = {column.name: column for column in describe_query(connection, "SELECT * FROM odd").columns}
    positions = {name: number for number, name in enumerate(columns)}
    assert list(found) == list(columns)
    for name, (_, _, in_json, schema) in COLUMNS.items():
        if name != "a_two":  # a result says nothing of dimensions
            node = column_node(found[name], ALL)
            assert node is not None
            assert schema_json(node.schema).decode().startswith(schema), name
            assert JsonConverter(schemas_enable=False).compile(node, positions)(values) == in_json.encode()


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
    node = column_node(columns[2], ALL)
    assert node is not None
    assert node.schema == Schema.decimal(2, 5)


def test_an_array_of_other_dimensions_than_declared(table: tuple[dict[str, Column], list[Any]]) -> None:
    columns, _ = table
    node = column_node(columns["a_int"], ALL)
    assert node is not None
    render = JsonConverter(schemas_enable=False).compile(node, {"a_int": 0})
    with pytest.raises(RowError, match="column a_int: the array has 2 dimensions, and its column was declared with 1"):
        render([b"{{1,2},{3,4}}"])


def test_the_connector_leaves_them_out_with_a_warning(table: tuple[dict[str, Column], list[Any]]) -> None:
    columns, _ = table
    options = ColumnOptions()
    assert column_node(columns["a_int"], options) is None
    assert list(column_warnings("public.odd", columns["a_int"], options)) == [
        "table public.odd: column a_int of type _int4 is left out: not supported; compactory.types=all keeps it"
    ]
    assert not list(column_warnings("public.odd", columns["a_int"], ALL))
    assert not list(column_warnings("public.odd", columns["plain"], options))
    bare = Column(name="n", type="numeric")
    assert not list(column_warnings("t", bare, options))
    (warning,) = column_warnings("t", bare, ColumnOptions(numeric_mapping=NumericMapping.BEST_FIT))
    assert "numeric.mapping=best_fit makes a number of 8 bits" in warning


CHARACTERS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


def quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@given(st.lists(st.lists(CHARACTERS | st.none(), min_size=2, max_size=2), min_size=1, max_size=4))
def test_arrays_read_back(rows: list[list[str | None]]) -> None:
    text = "{" + ",".join("{" + ",".join(map(quoted, row)) + "}" for row in rows) + "}"
    assert array_parts(text.encode(), 2) == [[None if x is None else x.encode() for x in row] for row in rows]


@given(st.lists(CHARACTERS | st.none(), min_size=1, max_size=4))
def test_composites_read_back(parts: list[str | None]) -> None:
    doubled = ("" if part is None else '"' + part.replace("\\", "\\\\").replace('"', '""') + '"' for part in parts)
    assert composite_parts(f"({','.join(doubled)})".encode()) == [None if p is None else p.encode() for p in parts]


@given(st.dictionaries(CHARACTERS, CHARACTERS | st.none(), max_size=4))
def test_hstores_read_back(items: dict[str, str | None]) -> None:
    text = ", ".join(f"{quoted(name)}=>{quoted(value)}" for name, value in items.items())
    assert hstore_items(text.encode()) == {k.encode(): None if v is None else v.encode() for k, v in items.items()}


def test_postgres_writes_what_is_read(database: str) -> None:
    """Parts with every awkward character, as Postgres itself writes them."""
    awkward = ["", " ", "a b", ",", '"', "\\", "{", "}", "(", ")", "NULL", "null", "=>", "\n", "é", "😀", "'"]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION hstore; CREATE TYPE pair AS (a text, b numeric)")
        row = connection.execute("SELECT %s::text[]::text", [awkward]).fetchone()
        assert row is not None
        assert array_parts(row[0].encode(), 1) == [text.encode() for text in awkward]
        for text in awkward:
            found = connection.execute("SELECT ROW(%s, 1.5)::pair::text, hstore(%s, %s)::text", [text] * 3).fetchone()
            assert found is not None
            assert composite_parts(found[0].encode()) == [text.encode(), str(Decimal("1.5")).encode()]
            assert hstore_items(found[1].encode()) == {text.encode(): text.encode()}
