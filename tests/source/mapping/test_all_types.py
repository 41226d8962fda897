"""The types that the real connector leaves out, under ``compactory.types=all``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import sql

from compactory_connectors.schema import Adoption, adopt, install
from compactory_connectors.source import SourceRecord
from compactory_connectors.source.config.connector import ColumnOptions, ColumnTypes, NumericMapping
from compactory_connectors.source.mapping.column_type import column_warnings
from compactory_connectors.source.postgres.catalog import Column
from tests.source.poller import Poller

TYPES = """
CREATE EXTENSION hstore; CREATE EXTENSION citext;
CREATE TYPE mood AS ENUM ('sad', 'not "ok"');
CREATE DOMAIN positive AS numeric(6,2) CHECK (value > 0);
CREATE DOMAIN list AS int[];
CREATE TYPE address AS (street text, "number" int);
CREATE TYPE person AS (name text, home address, tags text[], worth positive);
"""

COLUMNS: Mapping[str, tuple[str, str, Any]] = {
    # name: type, value, the same in JSON
    "a_int": ("int[]", "'{1,NULL,-3}'", [1, None, -3]),
    "a_empty": ("int[]", "'{}'", []),
    "a_bounds": ("int[]", "'[0:1]={7,8}'", [7, 8]),
    "a_two": ("int[]", "'{{1,2},{3,4}}'", [[1, 2], [3, 4]]),
    "a_text": (
        "text[]",
        """ARRAY['a,b', 'c"d', 'e\\f', '', 'NULL', NULL, '{}', E'g\nh', '😀']""",
        ["a,b", 'c"d', "e\\f", "", "NULL", None, "{}", "g\nh", "😀"],
    ),
    "a_numeric": ("numeric(10,2)[]", "'{12345.60}'", [12345.6]),
    "a_domain": ("positive[]", "'{1.5}'", [1.5]),
    "domain": ("list", "'{1}'", [1]),
    "a_mood": ("mood[]", """'{sad,"not \\"ok\\""}'""", ["sad", 'not "ok"']),
    "a_time": ("timestamptz[]", "'{2024-01-01 00:00:00.5+00}'", ["2024-01-01T00:00:00.5+00:00"]),
    "a_bytea": ("bytea[]", "ARRAY['\\x00ff'::bytea]", ["\\x00ff"]),
    "a_box": ("box[]", "'{(1,1),(0,0);(2,2),(0,0)}'", ["(1,1),(0,0)", "(2,2),(0,0)"]),
    "a_address": (
        "address[]",
        "ARRAY[ROW('a, \"b\"', 7)::address, NULL, ROW(NULL, NULL)::address]",
        [{"street": 'a, "b"', "number": 7}, None, {"street": None, "number": None}],
    ),
    "person": (
        "person",
        "ROW('N', ROW('S (x)', 1), ARRAY['t','u v'], 2)::person",
        {"name": "N", "home": {"street": "S (x)", "number": 1}, "tags": ["t", "u v"], "worth": 2.0},
    ),
    "h": ("hstore", """'a=>1, "b c"=>NULL, "d\\"e"=>"f\\\\g"'""", {"a": "1", "b c": None, 'd"e': "f\\g"}),
    "ci": ("citext", "'AbC'", "AbC"),
    "vb": ("varbit", "B'0101'", "0101"),
    "iv": ("interval", "'1 mon -2 days 03:04:05.6'", "1 mon -2 days +03:04:05.6"),
    "ip": ("inet", "'10.0.0.1/8'", "10.0.0.1/8"),
    "net": ("cidr", "'10.0.0.0/8'", "10.0.0.0/8"),
    "mac": ("macaddr", "'08-00-2b-01-02-03'", "08:00:2b:01:02:03"),
    "r": ("int4range", "'[1,5]'", "[1,6)"),
    "rt": ("tstzrange", "'[2024-01-01 00:00+00,)'", '["2024-01-01 00:00:00+00",)'),
    "p": ("point", "'(1,2.5)'", "(1,2.5)"),
    "ts": ("tsvector", "'a:1 b'", "'a':1 'b'"),
    "x": ("xid8", "'123'", "123"),
    "plain": ("int", "5", 5),
}
HAVE_PARTS = [*COLUMNS][: [*COLUMNS].index("ci")]


@pytest.fixture
def table(database: str) -> str:
    """The URL of a database whose table ``t`` has a row of values and a row of NULLs."""
    names = [sql.Identifier(name).as_string() for name in COLUMNS]
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(TYPES)
        columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in zip(names, COLUMNS.values(), strict=True))
        owner.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})".encode())
        owner.execute(f"INSERT INTO t VALUES (1, {', '.join(value for _, value, _ in COLUMNS.values())})".encode())
        owner.execute("INSERT INTO t (id) VALUES (2)")
    return database


def sent(url: str, **changes: Any) -> list[Any]:
    """The values of all rows, by their keys, without the keys."""
    poller = Poller(url, "bulk", compactory__types="all", **changes)
    try:
        values = sorted(poller.poll(), key=lambda value: value.get("payload", value)["id"])
    finally:
        poller.close()
    for value in values:
        value.get("payload", value).pop("id")
    return values


@pytest.mark.parametrize("source", [{}, {"query": "SELECT * FROM t"}])
def test_arrays_composites_and_hstores_are_parts_of_json(table: str, source: dict[str, str]) -> None:
    expected = {name: value for name, (_, _, value) in COLUMNS.items()}
    assert sent(table, **source) == [expected, dict.fromkeys(COLUMNS)]


def test_under_a_schema_they_are_texts_with_json(table: str) -> None:
    full, empty = sent(table, value__converter__schemas__enable="true")
    fields = {field["field"]: field["type"] for field in full["schema"]["fields"]}
    assert [name for name in HAVE_PARTS if fields[name] != "string"] == []
    read = {name: json.loads(full["payload"][name]) for name in HAVE_PARTS}
    assert read == {name: COLUMNS[name][2] for name in HAVE_PARTS}
    assert empty["payload"] == dict.fromkeys(COLUMNS)


def test_a_key_of_an_array_finds_its_deleted_row(database: str) -> None:
    """The key of a deleted row is made as that of a living one, and no living row is taken for it."""
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("CREATE TABLE t (id int[] PRIMARY KEY, changed timestamp NOT NULL, active boolean NOT NULL)")
        owner.execute("INSERT INTO t VALUES ('{1,2}', '2024-01-01', true), ('{3}', '2024-01-01', true)")
        changes = {"compactory__types": "all", "compactory__soft__delete__column": "active"}
        poller = Poller(database, "timestamp", **changes)
        assert [value["id"] for value in poller.poll()] == [[1, 2], [3]]
        owner.execute("UPDATE t SET active = false, changed = '2024-01-02' WHERE id = '{3}'")
        assert poller.poll() == [(b"[3]", None)]
        poller.close()


def test_a_logged_delete_has_the_key_of_its_array(database: str) -> None:
    """The log of an adopted table has the array; its key is written as that of the living row was."""
    install(database)
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("CREATE TABLE t (n int, id int[] PRIMARY KEY, changed timestamp NOT NULL)")
        adopt(owner, Adoption(table="t", key=("id",), timestamp="changed", allow_deletes=True))
        owner.execute("INSERT INTO t VALUES (1, '{1,2}'), (2, '{3}')")
        poller = Poller(database, "timestamp", compactory__types="all")
        assert [value["id"] for value in poller.poll()] == [[1, 2], [3]]
        owner.execute("DELETE FROM t WHERE id = '{3}'")
        assert poller.poll() == [(b"[3]", None)]
        poller.close()


def with_one_more(record: SourceRecord) -> SourceRecord:
    """Return the record with one more element in its array; the composite stays as it is."""
    assert record.value["person"] == {"name": "N", "worth": Decimal("2.50")}
    return record.with_value({**record.value, "tags": [*record.value["tags"], Decimal("0.1")]})


def test_a_function_gets_lists_and_dictionaries(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("CREATE TYPE person AS (name text, worth numeric)")
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, tags text[], person person)")
        owner.execute("INSERT INTO t VALUES (1, '{a}', ROW('N', 2.50))")
    function = f"{__name__}:{with_one_more.__name__}"
    poller = Poller(database, "bulk", compactory__types="all", compactory__transform=function)
    poller.poll()
    poller.close()
    assert poller.sent == [(b"1", b'{"id":1,"tags":["a",0.1],"person":{"name": "N", "worth": 2.50}}')]


def test_the_connector_leaves_them_out_with_a_warning() -> None:
    array, options = Column(name="a", type="_int4", has_parts=True), ColumnOptions()
    assert list(column_warnings("public.odd", array, options)) == [
        "table public.odd: column a of type _int4 is left out: not supported; compactory.types=all keeps it"
    ]
    assert not list(column_warnings("public.odd", array, ColumnOptions(types=ColumnTypes.ALL)))
    bare = Column(name="n", type="numeric")
    assert not list(column_warnings("t", bare, options))
    (warning,) = column_warnings("t", bare, ColumnOptions(numeric_mapping=NumericMapping.BEST_FIT))
    assert "numeric.mapping=best_fit makes a number of 8 bits" in warning
