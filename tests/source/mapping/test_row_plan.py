"""A table's plan on a real Postgres: what is selected, what the key is made of, and every bad table at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from compactory.errors import ConfigError
from compactory_connectors.postgres.watched_connection import connect
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.config.files import parse_connector
from compactory_connectors.source.config.selection import RelationKind
from compactory_connectors.source.mapping.row_plan import RowPlan, compile_plan
from compactory_connectors.source.postgres.catalog import Column, Table
from compactory_connectors.source.postgres.chunk_reader import raw_rows
from tests.source.described import describe_tables

KAFKA = "org.apache.kafka.connect.transforms."
KEY = {
    "transforms": "copy,extract",
    "transforms.copy.type": f"{KAFKA}ValueToKey",
    "transforms.copy.fields": "id",
    "transforms.extract.type": f"{KAFKA}ExtractField$Key",
    "transforms.extract.field": "id",
}


def connector(**settings: str) -> ConnectorConfig:
    """A connector; ``__`` in the names of settings stands for a dot."""
    return parse_connector(
        json.dumps(
            {
                "connection.url": "jdbc:postgresql://db/shop",
                "mode": "timestamp+incrementing",
                "incrementing.column.name": "id",
                "timestamp.column.name": "updated",
                "table.whitelist": "t",
                "topic.prefix": "p.",
                "value.converter.schemas.enable": "false",
            }
            | {name.replace("__", "."): value for name, value in settings.items()}
        ),
        default_name="c",
        environment={},
    )


@pytest.fixture
def postgres(database: str) -> Iterator[psycopg.Connection[Any]]:
    with connect(conninfo_to_dict(database)) as connection:
        yield connection


def planned(postgres: psycopg.Connection[Any], config: ConnectorConfig) -> RowPlan:
    (table,) = describe_tables(postgres, config)
    return compile_plan(config, table)


TABLE = "CREATE TABLE t (id int8 PRIMARY KEY, name text, updated timestamp NOT NULL)"


def test_a_table_as_the_catalogue_describes_it(postgres: psycopg.Connection[Any]) -> None:
    postgres.execute("CREATE DOMAIN amount AS numeric(12, 3) NOT NULL; CREATE DOMAIN price AS amount")
    postgres.execute("CREATE SCHEMA ref; CREATE TYPE ref.mood AS ENUM ('a')")
    postgres.execute(
        """CREATE TABLE ref."T 1" (b int2, id int4, gone text, updated timestamptz NOT NULL, price price, mood ref.mood,
           list int4[], "v c" varchar(7), updated_xid xid8, PRIMARY KEY (id, b)); ALTER TABLE ref."T 1" DROP gone"""
    )
    (table,) = describe_tables(postgres, connector(table__whitelist='ref."T 1"'))
    assert (table.schema, table.name, table.kind, table.primary_key) == (
        "ref",
        "T 1",
        "r",
        ("id", "b"),
    )
    assert table.columns == (
        Column(name="b", type="int2", not_null=True, declared="smallint"),
        Column(name="id", type="int4", not_null=True, declared="integer"),
        Column(name="updated", type="timestamptz", not_null=True, declared="timestamp with time zone"),
        Column(name="price", type="numeric", typmod=(12 << 16 | 3) + 4, not_null=True, declared="price"),
        Column(name="mood", type="mood", type_schema="ref", type_kind="e", declared="ref.mood"),
        Column(name="list", type="_int4", has_parts=True, declared="integer[]"),
        Column(name="v c", type="varchar", typmod=11, declared="character varying(7)"),
    )
    plan = compile_plan(connector(), table)
    assert plan.topic == "p.T 1"
    left_out = "table ref.T 1: column list of type _int4 is left out: not supported; compactory.types=all keeps it"
    assert plan.warnings == (left_out,)
    assert "updated_xid" not in plan.columns


def test_the_search_path_finds_the_schema(postgres: psycopg.Connection[Any]) -> None:
    postgres.execute(f"CREATE SCHEMA ref; SET search_path = ref, public; {TABLE}")
    (table,) = describe_tables(postgres, connector())
    assert str(table) == "ref.t"


def test_key_columns_are_traced_through_renaming(postgres: psycopg.Connection[Any]) -> None:
    postgres.execute("CREATE TABLE t (id int8 PRIMARY KEY, terminal_id text, at date, updated timestamp NOT NULL)")
    rename = "com.github.jcustenborder.kafka.connect.transform.common.ChangeCase$Value"
    plan = planned(
        postgres,
        connector(
            transforms="case,copy",
            transforms__case__type=rename,
            transforms__case__from="LOWER_UNDERSCORE",
            transforms__case__to="LOWER_CAMEL",
            transforms__copy__type=f"{KAFKA}ValueToKey",
            transforms__copy__fields="at,terminalId",
            key__converter="org.apache.kafka.connect.json.JsonConverter",
            key__converter__schemas__enable="false",
        ),
    )
    assert plan.columns == ("id", "terminal_id", "at", "updated")
    assert plan.key_columns == ("terminal_id", "at")
    raw = [b"1", b"T1", b"2024-02-29", b"2024-01-01 00:00:00"]
    assert plan.render(raw) == (
        b'{"at":19782,"terminalId":"T1"}',
        b'{"id":1,"terminalId":"T1","at":19782,"updated":1704067200000}',
    )
    assert plan.render_key(raw) == b'{"at":19782,"terminalId":"T1"}'
    assert plan.render([*raw, b"behind the plan's columns"]) == plan.render(raw)


def test_only_columns_that_reach_the_record_are_selected(postgres: psycopg.Connection[Any]) -> None:
    postgres.execute(TABLE)
    settings: Mapping[str, str] = KEY | {
        "transforms": "copy,extract,name",
        "transforms.name.type": f"{KAFKA}ExtractField$Value",
        "transforms.name.field": "name",
    }
    plan = planned(postgres, connector(**{name.replace(".", "__"): value for name, value in settings.items()}))
    assert (plan.columns, plan.key_columns) == (("id", "name"), ("id",))
    assert plan.render([b"1", b"x"]) == (b"1", b'"x"')
    assert plan.render([b"1", None]) == (b"1", b"null")


def test_a_deleted_row_as_json_gives_the_same_key(postgres: psycopg.Connection[Any]) -> None:
    postgres.execute("CREATE TYPE mood AS ENUM ('happy')")
    postgres.execute(
        """CREATE TABLE t (id int8 PRIMARY KEY, f8 float8, f4 float4, n numeric, n2 numeric(10,2), s text, c char(5),
           b bool, d date, tm time, ts timestamp, tz timestamptz, u uuid, j jsonb, y bytea, m mood,
           updated timestamp NOT NULL);
           INSERT INTO t VALUES (1, 0.1, 1e10, 1e-10, 2.5, E'"\\\\ é 😀', 'ab', true, '0044-03-15 BC', '12:34:56.789',
           'infinity', '2024-01-01 11:11:11.123456+03', gen_random_uuid(), '{"b": [1, 2.50]}', '\\xdead', 'happy',
           now())"""
    )
    names = "id,f8,f4,n,n2,s,c,b,d,tm,ts,tz,u,j,y,m"
    plan = planned(
        postgres,
        connector(
            transforms="copy",
            transforms__copy__type=f"{KAFKA}ValueToKey",
            transforms__copy__fields=names,
            key__converter="org.apache.kafka.connect.json.JsonConverter",
        ),
    )
    assert plan.key_columns == tuple(names.split(","))
    columns = sql.SQL(", ").join(map(sql.Identifier, plan.columns))
    query = sql.SQL(
        "SELECT {columns} FROM t UNION ALL "
        "SELECT {columns} FROM jsonb_populate_record(NULL::t, (SELECT to_jsonb(t) FROM t))"
    )
    row, deleted = raw_rows(postgres.execute(query.format(columns=columns)))
    assert plan.render_key(row) == plan.render_key(deleted)


def test_what_does_not_fit_the_table_is_a_problem(postgres: psycopg.Connection[Any]) -> None:
    postgres.execute(TABLE)
    settings = {name.replace(".", "__"): value for name, value in KEY.items()}
    config = connector(**settings | {"transforms__copy__fields": "idd"})
    with pytest.raises(ConfigError) as caught:
        planned(postgres, config)
    assert caught.value.problems == [
        "table public.t: transforms.copy: the value has no field idd; did you mean id? (it has id, name, updated)"
    ]


KEYS = [("Cast$Key", {"spec": "string"}, False), ("Cast$Key", {"spec": "int8"}, True)]


@pytest.mark.parametrize(("class_name", "options", "warned"), KEYS)
def test_a_key_that_two_rows_may_share_is_warned_of(class_name: str, options: dict[str, str], warned: bool) -> None:
    table = Table(
        schema="s",
        name="t",
        oid=1,
        kind=RelationKind.TABLE,
        columns=(Column(name="id", type="int8", not_null=True),),
        primary_key=("id",),
    )
    settings = KEY | {"transforms": "copy,extract,x", "transforms.x.type": class_name}
    settings |= {f"transforms.x.{name}": text for name, text in options.items()}
    plan = compile_plan(connector(**{name.replace(".", "__"): text for name, text in settings.items()}), table)
    warning = "table s.t: the key is made of column id by a conversion that may give two rows one key"
    assert [text.startswith(warning) for text in plan.warnings] == [True] * warned


@pytest.mark.parametrize("name", ["header.converter", "header.converter.schemas.enable"])
def test_a_converter_of_headers_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connector(**{name.replace(".", "__"): "false"})
    assert [*caught.value.problems] == [f"{name}: the source writes no headers; leave it out"]


def test_converters_that_cannot_write_the_record_are_problems() -> None:
    string = "org.apache.kafka.connect.storage.StringConverter"
    columns = (Column(name="id", type="int8", not_null=True), Column(name="y", type="bytea"))
    table = Table(schema="s", name="t", oid=1, kind=RelationKind.TABLE, columns=columns, primary_key=("id",))
    with pytest.raises(ConfigError) as caught:
        compile_plan(
            connector(
                key__converter=string,
                value__converter=string,
                value__converter__schemas__enable="false",
                transforms="copy",
                transforms__copy__type=f"{KAFKA}ValueToKey",
                transforms__copy__fields="y",
            ),
            table,
        )
    message = "StringConverter can't write bytes: Java would write the address of an array"
    assert caught.value.problems == [
        f"table s.t: key.converter: {message}",
        f"table s.t: value.converter: {message}",
    ]
