"""Rules of a load, and which column of a source fills which of a target. No Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compactory.errors import ConfigError
from compactory_connectors.spark.column_types import parse_type
from compactory_connectors.spark.rules.limit import Limit
from compactory_connectors.spark.rules.mapping import Layout, Mapped, map_columns
from compactory_connectors.spark.rules.rules import Rules
from compactory_connectors.spark.rules.rules_file import parse_rules, read_rules
from compactory_connectors.spark.target import TargetColumn

COLUMNS = [
    TargetColumn(name="code", type="text", nullable=False),
    TargetColumn(name="fee", type="numeric(10,2)"),
    TargetColumn(name="name", type="character varying(20)"),
]


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse_rules(text, "rules.yaml")
    return raised.value.problems


def test_every_problem_is_told_at_once_with_its_line() -> None:
    text = """\
read:
  encodng: latin-1
  delimiter: ";;"
columns:
  code: {required: maybe, type: integr}
  name:
    from: a
    value: b
    from: c
duplicates: [updated]
"""
    assert problems(text) == [
        "rules.yaml:2: read.encodng: unknown key; did you mean encoding?",
        "rules.yaml:3: read.delimiter: must be one character, and is ';;'",
        "rules.yaml:5: columns.code.required: must be true or false",
        "rules.yaml:5: columns.code.type: 'integr' is no type; did you mean integer?",
        "rules.yaml:7: columns.name: has from and value, and one of them fills the column; keep one",
        "rules.yaml:9: columns.name.from: is there twice; keep one",
        'rules.yaml:10: duplicates: \'updated\' is no order; write "COLUMN desc" (greatest wins) or "COLUMN asc"',
    ]


def test_texts_are_what_is_written() -> None:
    """Norway is no truth value, a code with leading zeros no number."""
    rules = parse_rules("columns: {country: {allowed: [NO, on, 007, 1_0, 2024-01-01, '']}}", "r")
    assert rules.columns["country"].allowed == ("NO", "on", "007", "1_0", "2024-01-01", "")


@pytest.mark.parametrize("text", ["", "# nothing\n", "columns:\n", "{}"])
def test_rules_that_say_nothing(text: str) -> None:
    assert parse_rules(text, "r") == Rules()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("columns: [a", "r:1: not valid YAML"),
        ("columns: a", "must be a section"),
        ("- a", "r: must be a section"),
        ("columns: {a: {reference: {column: b}}}", "names no directory"),
        ("checks: [{name: x}]", "has no expression"),
        ("read: {encoding: utf-16}", "convert them, iconv"),
        ("read: {encoding: klingon}", "is no encoding"),
        ("read: {time_zone: Mars/Base}", "is no time zone"),
        ("read: {format: xls}", "is not a choice; known are csv, json, parquet"),
        ("columns: {a: {allowed: [[b]]}}", "must be text"),
    ],
)
def test_what_is_no_rule(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_rules(text, "r")
    assert any(problem in each for each in raised.value.problems)


@pytest.mark.parametrize(
    "text",
    [
        "columns: &all\n  a: *all\n",
        "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(f"{x}: &{x} [*b, *b]\n" for x in "cdefghij") + "columns: *j\n",
    ],
)
def test_aliases_are_refused_before_they_are_followed(text: str) -> None:
    """One may stand for itself, and nested ones for more text than memory holds."""
    assert re.fullmatch(r"rules.yaml:2: alias \*\w+: rules take no aliases; write the value out", problems(text)[0])


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("columns: {ä: {}}".encode("latin-1"))
    for name in ("none.yaml", "latin.yaml"):
        with pytest.raises(ConfigError, match=name):
            read_rules(tmp_path / name)


@pytest.mark.parametrize(
    ("written", "spelt", "spark"),
    [
        ("varchar(20)", "character varying(20)", "string"),
        ("DECIMAL(10, 2)", "numeric(10,2)", "decimal(10,2)"),
        ("numeric(10)", "numeric(10)", "decimal(10,0)"),
        ("numeric", "numeric", "string"),
        ("numeric(50,2)", "numeric(50,2)", "string"),
        ("numeric(3,-2)", "numeric(3,-2)", "string"),
        ("timestamptz(3)", "timestamp(3) with time zone", "timestamp"),
        ("timestamp without time zone", "timestamp without time zone", "timestamp_ntz"),
        ("int8", "bigint", "bigint"),
        ("double  precision", "double precision", "double"),
        ("text[]", "text[]", "string"),
        ('"My Enum"', '"My Enum"', "string"),
        ("shop.State", "shop.State", "string"),
    ],
)
def test_types(written: str, spelt: str, spark: str) -> None:
    kind = parse_type(written)
    assert (str(kind), kind.spark) == (spelt, spark)
    assert parse_type(str(kind)) == kind


def mapped(*layouts: tuple[str, ...], rules: str = "", whole: bool = False) -> Mapped:
    found = [Layout(label=f"{number}.csv", columns=columns) for number, columns in enumerate(layouts)]
    return map_columns(found, COLUMNS, ["code"], parse_rules(rules, "r"), whole=whole)


def test_a_header_with_another_delimiter_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        mapped(("code;name;fee",))
    assert caught.value.problems == [
        "0.csv has one column, 'code;name;fee': say read.delimiter: ';' in the rules",
    ]


def test_columns_are_found_by_name_in_whatever_order() -> None:
    found = mapped(("code", "fee", "extra"), (" FEE ", "other", "Code"))
    assert [item.name for item in found.fillings] == ["code", "fee"]
    assert found.places == {"0.csv": {"code": 0, "fee": 1}, "1.csv": {"code": 2, "fee": 0}}
    assert found.unused == ("extra", "other")


def test_a_column_that_one_file_lacks_is_no_null() -> None:
    with pytest.raises(ConfigError, match=r"1.csv has no column 'fee'.*optional"):
        mapped(("code", "fee"), ("code",))
    rules = "columns: {fee: {optional: true}}"
    assert mapped(("code", "fee"), ("code",), rules=rules).places["1.csv"] == {"code": 0}


def test_every_problem_of_the_columns() -> None:
    rules = "key: [name]\ncolumns: {fees: {}, name: {from: Nmae}}"
    with pytest.raises(ConfigError) as raised:
        mapped(("Name", "Name"), rules=rules)
    assert raised.value.problems == [
        "r:2: columns.fees: the target has no column 'fees'; did you mean 'fee'?",
        "the rules' key is name, and the target's is code",
        "0.csv has no column 'code' (it has Name, Name); code can't be null: say by `from` what fills it",
        "0.csv has no column 'Nmae'; did you mean 'Name'?; say by `from` what fills name, or that it is `optional`",
    ]


def test_a_name_that_is_there_twice() -> None:
    with pytest.raises(ConfigError, match="2 columns named 'fee': which one"):
        mapped(("code", "fee", "fee"))
    assert mapped(("code", "x", "x")).unused == ("x", "x") or mapped(("code", "x", "x")).unused == ("x",)


def test_columns_that_are_ignored_are_not_loaded() -> None:
    found = mapped(("code", "fee", "x"), rules="ignore: [fee, x]")
    assert [item.name for item in found.fillings] == ["code"]
    assert not found.unused


def test_a_record_of_kafka_needs_every_column() -> None:
    with pytest.raises(ConfigError, match="no column 'name'"):
        mapped(("code", "fee"), whole=True)


@pytest.mark.parametrize(
    ("text", "count", "of", "allowed"),
    [
        ("0", 0, 10, True),
        ("0", 1, 10, False),
        ("5", 5, 6, True),
        ("1%", 1, 100, True),
        ("1%", 2, 100, False),
        ("0.5%", 1, 200, True),
    ],
)
def test_limits(text: str, count: int, of: int, allowed: bool) -> None:
    assert Limit.parse(text, "--max-rejects").allows(count, of) is allowed


@pytest.mark.parametrize("text", ["", "-1", "x", "101%", "1%%", "1.5", "nan%"])
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(ConfigError, match="--max-rejects"):
        Limit.parse(text, "--max-rejects")
