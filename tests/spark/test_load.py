"""Loads: nasty files → rows with reasons, and into a real table. One Spark session for all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from compactory.errors import CompactoryError, ConfigError
from compactory_connectors.postgres.jdbc_url import parse_url
from compactory_connectors.schema import install
from compactory_connectors.source.config.connector import MAX_REMOVED_PERCENT
from compactory_connectors.spark.checking.casting import Spelling, cast
from compactory_connectors.spark.checking.checks import REASONS, Checks
from compactory_connectors.spark.column_types import parse_type
from compactory_connectors.spark.failures import spark_failures
from compactory_connectors.spark.identifier import literal
from compactory_connectors.spark.into_table.to_postgres import PostgresTarget
from compactory_connectors.spark.load_job import Load, Plan
from compactory_connectors.spark.report import LoadReport, Outcome
from compactory_connectors.spark.rules.limit import Limit
from compactory_connectors.spark.rules.mapping import Layout, map_columns
from compactory_connectors.spark.rules.rules import FileFormat, ReadOptions
from compactory_connectors.spark.rules.rules_file import parse_rules
from compactory_connectors.spark.sources.parts import BLOCK, FAULT, FAULTS, FILE, LINE, RAW, Part, numbered, position
from compactory_connectors.spark.sources.reading import read_files
from compactory_connectors.spark.sources.source_files import list_files
from compactory_connectors.spark.target import Change, Mode, TargetColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BERLIN = "Europe/Berlin"
CASES: list[tuple[str, str, str | None, dict[str, str]]] = [
    # type, text, what becomes of it (a reason where it begins with "!"), how it is spelt
    ("integer", " 42 ", "42", {}),
    ("integer", "2147483648", "!does not fit integer", {}),
    ("integer", "1.0", "!is not a whole number", {}),
    ("smallint", "１", "!is not a whole number", {}),
    ("bigint", "-9223372036854775808", "-9223372036854775808", {}),
    ("integer", "1.234", "1234", {"decimal": ","}),
    ("numeric(10,2)", "1.50", "1.50", {}),
    ("numeric(10,2)", "1.500", "1.50", {}),
    ("numeric(10,2)", "1.505", "!has more than 2 decimals", {}),
    ("numeric(10,2)", "123456789", "!does not fit numeric(10,2)", {}),
    ("numeric(10,2)", "1.234.567,5", "1234567.50", {"decimal": ","}),
    ("numeric(10,2)", "1,5", "!is not a number", {}),
    ("numeric(10,2)", "1.5e3", "1500.00", {}),
    ("numeric(10,2)", "NaN", "!is not a number", {}),
    ("numeric(38,38)", "0.1", "0." + "1".ljust(38, "0"), {}),
    ("numeric(38,18)", "1.5000000000000000000", "1.500000000000000000", {}),
    ("numeric(38,18)", "1.0000000000000000001", "!has more than 18 decimals", {}),
    ("numeric(38,18)", "1.5e-20", "!has more than 18 decimals", {}),
    ("numeric(38,18)", "15E-1", "1.500000000000000000", {}),
    ("numeric", "1.5e3", "1500", {}),
    ("numeric", "1e-20", "!does not fit numeric", {}),
    ("numeric", "+007.50", "7.50", {}),
    ("numeric", "-.5", "-0.5", {}),
    ("numeric", "-0.00", "0.00", {}),
    ("numeric", "9" * 60, "9" * 60, {}),
    ("numeric", "Infinity", "!is not a number", {}),
    ("numeric(50,2)", "9" * 49, "!does not fit numeric(50,2)", {}),
    ("double precision", "1e400", "!does not fit double precision", {}),
    ("double precision", "1d", "!is not a number", {}),
    ("double precision", "-2.5E-3", "-0.0025", {}),
    ("real", "nan", "!is not a number", {}),
    ("boolean", "Y", "true", {}),
    ("boolean", "off", "false", {}),
    ("boolean", "maybe", "!is neither true nor false", {}),
    ("date", "2024-02-29", "2024-02-29", {}),
    ("date", "2024-02-30", "!is not a date like YYYY-MM-DD", {}),
    ("date", "2024", "!is not a date like YYYY-MM-DD", {}),
    ("date", "0000-01-01", "!is not a date like YYYY-MM-DD", {}),
    ("date", "2024-01-02T00:00:00", "2024-01-02", {}),
    ("date", "2024-01-02 10:00", "!is not a date like YYYY-MM-DD", {}),
    ("date", "31.12.2024", "2024-12-31", {"format": "dd.MM.yyyy"}),
    ("date", "31.02.2024", "!is not a date like dd.MM.yyyy", {"format": "dd.MM.yyyy"}),
    ("timestamp", "2024-01-02 03:04:05.678901", "2024-01-02 03:04:05.678901", {}),
    ("timestamp", "2024-01-02T03:04", "2024-01-02 03:04:00", {}),
    ("timestamp", "2024-01-02T03:04:05Z", "!has an offset, and the column has no time zone", {}),
    ("timestamp", "2024-01-02 25:00:00", "!is not a time like YYYY-MM-DD HH:MM:SS", {}),
    ("timestamp", "2024-01-02 03:04:05.1234565", "2024-01-02 03:04:05.123457", {}),
    ("timestamptz", "2024-12-31 23:59:59.999999999Z", "2025-01-01 00:00:00", {}),
    ("timestamp(3)", "2024-01-02 03:04:05.6789", "2024-01-02 03:04:05.679", {}),
    ("timestamp(0)", "2024-12-31 23:59:59.5", "2025-01-01 00:00:00", {}),
    ("timestamptz", "2024-01-02 03:04:05+02", "2024-01-02 01:04:05", {}),
    ("timestamptz", "2024-01-02T03:04:05 -0330", "2024-01-02 06:34:05", {}),
    ("timestamptz", "2024-01-02 03:04:05", "2024-01-02 03:04:05", {}),
    ("timestamptz", "2024-07-02 03:04:05", "2024-07-02 01:04:05", {"time_zone": BERLIN}),
    (
        "timestamptz",
        "2024-03-31 02:30:00",
        "!is no time in Europe/Berlin: clocks skipped it",
        {"time_zone": BERLIN},
    ),
    ("timestamptz", "2024-03-31 02:30:00Z", "2024-03-31 02:30:00", {"time_zone": BERLIN}),
    (
        "timestamptz",
        "02.01.2024 03:04 +0300",
        "2024-01-02 00:04:00",
        {"format": "dd.MM.yyyy HH:mm Z", "time_zone": BERLIN},
    ),
    (
        "timestamptz",
        "02.07.2024 03:04 Ortszeit",
        "2024-07-02 01:04:00",
        {"format": "dd.MM.yyyy HH:mm 'Ortszeit'", "time_zone": BERLIN},
    ),
    (
        "timestamptz",
        "2024-07-02T03:04:05Z",
        "2024-07-02 03:04:05",
        {"format": "yyyy-MM-dd'T'HH:mm:ss'Z'", "time_zone": BERLIN},
    ),
    ("timestamptz", "yesterday", "!is not a time like YYYY-MM-DD HH:MM:SS", {}),
    ("bytea", "\\x00fF", "\x00\ufffd", {}),
    ("bytea", "xyz", r"!is not bytes in hexadecimal digits, as in \x00ff", {}),
    ("bytea", "YWI=", "ab", {"format": "base64"}),
    ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", {}),
    ("uuid", "a0eebc99", "!is not a UUID", {}),
    ("jsonb", '{"a": [1, 2]}', '{"a": [1, 2]}', {}),
    ("jsonb", "{a: 1}", "!is not JSON", {}),
    ("jsonb", '"\\u0000"', "!has \\u0000, which jsonb does not hold", {}),
    ("text", "a\x00b", "!has a NUL character, which Postgres does not hold", {}),
    ("text", " 😀 ", " 😀 ", {}),
    ("varchar(2)", "😀😀", "😀😀", {}),
    ("varchar(2)", "abc", "!is longer than 2 characters", {}),
    ("char(4)", "ab", "ab  ", {}),
    ("inet", "10.0.0.1", "10.0.0.1", {}),
]


def test_values_of_every_type(spark: SparkSession) -> None:
    """Nothing is rounded, shifted or guessed: what is no value of its type has exactly one reason."""
    columns = []
    for number, (kind, _, _, spelling) in enumerate(CASES):
        found = cast(f"text[{number}]", parse_type(kind), Spelling(**spelling))
        reasons = ", ".join(f"if({each.condition}, {literal(each.text)}, NULL)" for each in found.problems)
        columns.append(
            f"struct(string({found.value}) AS value, array_compact(array({reasons})) AS reasons) AS c{number}"
        )
    frame = spark.createDataFrame([([text for _, text, _, _ in CASES],)], "text array<string>")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")  # for one row, compiling takes longest
    try:
        row = frame.selectExpr(*columns).collect()[0]
    finally:
        spark.conf.unset("spark.sql.codegen.factoryMode")
    wrong = []
    for (kind, text, wanted, spelling), found in zip(CASES, row, strict=True):
        got = found["value"] if not found["reasons"] else "!" + "; ".join(found["reasons"])
        if got != wanted or (found["value"] is None) != bool(found["reasons"]):
            wrong.append((kind, text, spelling, got, found["value"], wanted))
    assert wrong == []


def parts(spark: SparkSession, folder: Path, kind: FileFormat, **options: Any) -> list[Part]:
    return read_files(spark, list_files(spark, [str(folder)]), kind, ReadOptions(**options))


def rows(part: Part) -> list[tuple[Any, ...]]:
    names = [position(number) for number in range(len(part.layout.columns))]
    return [
        tuple(row) for row in numbered(part.frame, [part]).select(LINE, FAULT, *names).orderBy(FILE, LINE).collect()
    ]


def test_csv_files_of_every_kind(spark: SparkSession, tmp_path: Path) -> None:
    """Line ends may be mixed; a quote that its line does not close takes no other line along; lines are an editor's."""
    (tmp_path / "a.csv").write_bytes(
        b'\xef\xbb\xbfk,v\n1,"x\r\n2,\r\n3,""\n\n4,"a ""b"", c"\r\n5\n6,7,8\nk,v\n'
        b'7," z "\n8,"open\n9,\xff\n\xf0\x9f\x98\x80,\\N\n5" pipe,b\n'
    )
    [part] = parts(spark, tmp_path, FileFormat.CSV)
    assert part.layout.columns == ("k", "v")
    records = rows(part)
    assert [record[:3] for record in records if record[1] == "quote"] == [(2, "quote", "1"), (11, "quote", "8")]
    assert [record for record in records if record[1] != "quote"] == [
        (3, None, "2", None),
        (4, None, "3", ""),
        (6, None, "4", 'a "b", c'),
        (7, "columns:has 1 column; the header has 2", "5", None),
        (8, "columns:has 3 columns; the header has 2", "6", "7"),
        (10, None, "7", " z "),
        (12, "encoding", "9", "�"),
        (13, None, "😀", "\\N"),
        (14, None, '5" pipe', "b"),
    ]


def test_line_ends_in_quotes(spark: SparkSession, tmp_path: Path) -> None:
    """Files with other headers are read together; an odd number of quotes would hide the rest of a file."""
    (tmp_path / "a.csv").write_text('k,v\n1,"x\ny"\n2,b\n3\n')
    (tmp_path / "b.csv").write_text('v,k\n"p\nq",4\n')
    one, two = parts(spark, tmp_path, FileFormat.CSV, multiline=True)
    assert sorted(rows(one), key=lambda record: str(record[2])) == [
        (None, None, "1", "x\ny"),
        (None, None, "2", "b"),
        (None, "columns", "3", None),
    ]
    assert rows(two) == [(None, None, "p\nq", "4")]
    (tmp_path / "b.csv").write_text('k,v\n4,"open\n5,x\n')
    with pytest.raises(ConfigError, match=rf"\A{tmp_path}/b.csv: has an odd number of quotes"):
        parts(spark, tmp_path, FileFormat.CSV, multiline=True)


def test_lines_of_files_in_blocks(spark: SparkSession, tmp_path: Path) -> None:
    """A file that several tasks read has the same lines; so have files with other headers, or none."""
    text = "k;v\n" + "".join(f"{number};é{number}\n" for number in range(2, 400))
    (tmp_path / "a b.csv").write_text(text, encoding="windows-1252")
    (tmp_path / "c.csv").write_text("v;k\nx;1\n", encoding="windows-1252")
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1000")
    try:
        found = parts(spark, tmp_path, FileFormat.CSV, delimiter=";", encoding="windows-1252")
        assert [part.layout.columns for part in found] == [("k", "v"), ("v", "k")]
        assert found[0].frame.rdd.getNumPartitions() > 2
        assert rows(found[0]) == [(number, None, str(number), f"é{number}") for number in range(2, 400)]
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)
    [bare] = parts(spark, tmp_path / "c.csv", FileFormat.CSV, delimiter=";", header=("one", "two"))
    assert rows(bare) == [(1, None, "v", "k"), (2, None, "x", "1")]


COLUMNS = [
    TargetColumn(name="code", type="text", nullable=False),
    TargetColumn(name="fee", type="numeric(10,2)"),
    TargetColumn(name="day", type="date"),
]


def checked(spark: SparkSession, found: list[Part], rules: str = "") -> list[tuple[Any, ...]]:
    parsed = parse_rules(rules, "rules.yaml")
    mapped = map_columns([part.layout for part in found], COLUMNS, ["code"], parsed)
    checks = Checks(mapped=mapped, rules=parsed, parts=found)
    checks.prepare()
    frame = checks.rows
    names = [item.name for item in mapped.fillings]
    return [
        (
            *(None if row[name] is None else str(row[name]) for name in names),
            [str(checks.reasons[n]) for n in row[REASONS] or ()],
        )
        for row in frame.orderBy(FILE, LINE, "code").collect()
    ]


def test_columns_drift_between_files(spark: SparkSession, tmp_path: Path) -> None:
    """Columns in another order, more of them, or of another type: values stay where they belong."""
    (tmp_path / "1.csv").write_text("code,fee,day\nA,1.00,2024-01-01\n")
    (tmp_path / "2.csv").write_text("extra,day,FEE,code\nx,2024-01-02,2.00,B\n")
    assert checked(spark, parts(spark, tmp_path, FileFormat.CSV)) == [
        ("A", "1.00", "2024-01-01", []),
        ("B", "2.00", "2024-01-02", []),
    ]
    (tmp_path / "3.csv").write_text("code,day\nC,2024-01-03\n")
    with pytest.raises(ConfigError, match=r"3\.csv has no column 'fee'"):
        checked(spark, parts(spark, tmp_path, FileFormat.CSV))
    found = checked(spark, parts(spark, tmp_path, FileFormat.CSV), "columns: {fee: {optional: true, default: 9}}")
    assert found[2] == ("C", "9.00", "2024-01-03", [])


def test_parquet_files_of_other_types(spark: SparkSession, tmp_path: Path) -> None:
    one = spark.sql("SELECT 'A' AS code, 1.5D AS fee, DATE'2024-01-01' AS day")
    two = spark.sql("SELECT 7L AS code, DECIMAL(2.505) AS fee, TIMESTAMP'2024-01-02 00:00:00' AS day")
    three = spark.sql("SELECT 'C' AS code, '1.234' AS fee, TIMESTAMP'2024-01-02 10:00:00' AS day")
    for number, frame in enumerate((one, two, three)):
        frame.coalesce(1).write.parquet(str(tmp_path / str(number)))
    found = checked(spark, parts(spark, tmp_path, FileFormat.PARQUET))
    assert found == [
        ("A", "1.50", "2024-01-01", []),
        ("7", "3.00", "2024-01-02", []),
        ("C", None, None, ["fee has more than 2 decimals", "day is not a date like YYYY-MM-DD"]),
    ]


def test_json_keeps_every_digit(spark: SparkSession, tmp_path: Path) -> None:
    lines = ['{"k":1.10,"v":{"x":1.50}}', '{"k":12345678901234567890123.5}', "[1]", '{"k":"a', '{"v":null,"k":"😀"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    [part] = parts(spark, tmp_path, FileFormat.JSON)
    assert rows(part) == [
        (1, None, "1.10", '{"x":1.50}'),
        (2, None, "12345678901234567890123.5", None),
        (3, "json", None, None),
        (4, "json", None, None),
        (5, None, "😀", None),
    ]
    (tmp_path / "a.jsonl").write_text('{"k":"}{"}\n{"k":1} {"k":2}\n')
    with pytest.raises(ConfigError, match=r"a\.jsonl: has lines with several objects"):
        parts(spark, tmp_path, FileFormat.JSON)
    (tmp_path / "a.jsonl").write_text('{"k":"}{\\"} {","v":[{"x":1},{"x":2}]}\n')
    [part] = parts(spark, tmp_path, FileFormat.JSON)
    assert rows(part) == [(1, None, '}{"} {', '[{"x":1},{"x":2}]')]
    (tmp_path / "b.jsonl").write_text('\n{"k":2}\n')
    [part] = parts(spark, tmp_path, FileFormat.JSON)
    assert {row[0] for row in rows(part)} == {None}, "Spark leaves blank lines out, so that nobody can tell"
    (tmp_path / "b.jsonl").unlink()
    for uneven in ("\t", " [ ]", '[{"k":1},{"k":2}]'):
        (tmp_path / "a.jsonl").write_text(f'{uneven}\n{{"k":3}}\n')
        [part] = parts(spark, tmp_path, FileFormat.JSON)
        assert {row[0] for row in rows(part)} == {None}, "nor of how many records it makes of such a line"


def test_files_with_the_same_columns_are_one_part(spark: SparkSession, tmp_path: Path) -> None:
    moments = ("TIMESTAMP'2024-01-01 00:00:00Z'", "TIMESTAMP_NTZ'2024-01-01 00:00:00'")
    for number, value in enumerate(moments * 2):
        spark.sql(f"SELECT {value} AS code").coalesce(1).write.parquet(str(tmp_path / str(number)))
    assert len(parts(spark, tmp_path, FileFormat.PARQUET)) == 2


def test_moments_have_a_zone_already(spark: SparkSession, tmp_path: Path) -> None:
    """The rules' zone is for times without one; and that of the machine is for nothing."""
    spark.sql("SELECT TIMESTAMP'2024-07-02 10:00:00Z' AS a, TIMESTAMP_NTZ'2024-07-02 10:00:00' AS b").write.parquet(
        str(tmp_path / "p")
    )
    zones = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    zones.setDefault(zones.getTimeZone(BERLIN))
    try:
        for part in parts(spark, tmp_path / "p", FileFormat.PARQUET):
            columns = [TargetColumn(name=name, type="timestamptz") for name in ("a", "b")]
            rules = parse_rules(f"read: {{time_zone: {BERLIN}}}", "r")
            checks = Checks(mapped=map_columns([part.layout], columns, [], rules), rules=rules, parts=[part])
            [row] = checks.rows.selectExpr("string(a)", "string(b)").collect()
            assert tuple(row) == ("2024-07-02 10:00:00", "2024-07-02 08:00:00"), part.layout.label
    finally:
        zones.setDefault(zones.getTimeZone("UTC"))


def test_numbers_without_a_precision_are_compared_as_numbers(spark: SparkSession) -> None:
    from pyspark.sql import functions as sf

    column = TargetColumn(name="n", type="numeric")
    rules = parse_rules("columns: {n: {min: 100, max: 1000.5}}", "r")
    texts = ["99", "100", "1000.5", "1000.50000000000000000001", "9" * 50, "-" + "9" * 50, ""]
    frame = spark.createDataFrame([(text,) for text in texts], f"{position(0)} string").select(
        "*", *[sf.lit(None).cast("string").alias(name) for name in (FILE, BLOCK, RAW, FAULT)], sf.lit(1).alias(LINE)
    )
    part = Part(layout=Layout(label="x", columns=("n",)), frame=frame)
    checks = Checks(mapped=map_columns([part.layout], [column], [], rules), rules=rules, parts=[part])
    found = [[str(checks.reasons[n]) for n in row[REASONS] or ()] for row in checks.rows.collect()]
    less, greater = ["n is less than 100"], ["n is greater than 1000.5"]
    assert found == [less, [], [], [], greater, less, []]


def test_a_load_removes_no_larger_share_than_a_source() -> None:
    assert Plan(sources=[]).max_deactivate == Limit(percent=MAX_REMOVED_PERCENT)


def test_rules_give_every_reason_of_a_row(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("code,fee,day\nA1,5,2024-01-01\n,-1,\nB,99,2024-01-05\nA2,x,n/a\n")
    rules = """
columns:
  code: {pattern: 'A\\d'}
  fee: {min: 0, max: 10, allowed: [5, '5.00', -1, 99]}
  day: {nulls: [n/a], required: true}
checks: [{name: early, expression: "day < DATE'2024-01-03'"}]
"""
    assert [row[-1] for row in checked(spark, parts(spark, tmp_path, FileFormat.CSV), rules)] == [
        [],
        ["code is missing", "fee is less than 0", "day is missing"],
        ["code does not match A\\d", "fee is greater than 10", "does not satisfy: early"],
        ["fee is not a number", "day is missing"],
    ]


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("columns: {code: {pattern: '['}}", "columns.code.pattern: .* is not a regular expression"),
        ("columns: {fee: {min: cheap}}", "columns.fee.min: 'cheap' is no value of the column's type"),
        ("columns: {fee: {expression: nothing + 1}}", "columns.fee.expression: .*nothing"),
        ("columns: {fee: {expression: fee + }}", r"columns.fee.expression: \[PARSE"),
        ("columns: {fee: {expression: sum(fee)}}", "columns.fee.expression: .*GROUP BY"),
        ("columns: {day: {format: YYYY-MM-DD}}", "columns.day.format: 'YYYY-MM-DD' is no pattern of Spark's"),
        ("checks: [{name: x, expression: 'code ~~ 1'}]", "rules.yaml:1: checks"),
        ("checks: [{name: x, expression: fee}]", "rules.yaml:1: checks.*BOOLEAN"),
        ("duplicates: [when desc]", "has no column 'when'; it has code"),
    ],
)
def test_rules_that_spark_refuses(spark: SparkSession, tmp_path: Path, rules: str, problem: str) -> None:
    (tmp_path / "a.csv").write_text("code,fee,day\n")
    with pytest.raises(ConfigError, match=problem):
        checked(spark, parts(spark, tmp_path, FileFormat.CSV), rules)


def test_every_rule_that_spark_refuses_is_told_at_once(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("code,fee,day\n")
    rules = """
columns:
  code: {pattern: '['}
  fee: {min: cheap, expression: nothing + 1}
  day: {format: YYYY-MM-DD}
duplicates: [when desc]
"""
    with pytest.raises(ConfigError) as refused, spark_failures():
        checked(spark, parts(spark, tmp_path, FileFormat.CSV), rules)
    expected = ["columns.fee.min", "columns.code.pattern", "columns.day.format", "no column 'when'", "columns.fee.expr"]
    assert len(refused.value.problems) == len(expected)
    for problem, place in zip(refused.value.problems, expected, strict=True):
        assert place in problem
    assert "AnalysisException" not in capfd.readouterr().err


def test_sources_that_are_none(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file") as raised:
        list_files(spark, [str(tmp_path / "*.csv"), "none/x.csv"])
    assert len(raised.value.problems) == 2
    with pytest.raises(ConfigError, match="no file to load is named"):
        list_files(spark, [])
    (tmp_path / "_b.csv").write_text("k\n1\n")
    with pytest.raises(ConfigError, match="names that begin with _ or"):
        list_files(spark, [str(tmp_path / "_b.csv")])
    (tmp_path / "a[1].csv").write_text("")
    with pytest.raises(ConfigError, match="is empty, without even a header line"):
        parts(spark, tmp_path / "a[1].csv", FileFormat.CSV)


def test_what_spark_fails_with_is_a_line(spark: SparkSession) -> None:
    with pytest.raises(CompactoryError, match=r"Spark failed: .*no such thing") as raised, spark_failures():
        spark.sql("SELECT raise_error('no such thing')").collect()
    assert "\n" not in str(raised.value)


def test_a_file_that_is_broken_is_named(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(100_000).selectExpr("uuid() AS code").coalesce(1).write.parquet(str(tmp_path / "whole"))
    [whole] = (tmp_path / "whole").glob("*.parquet")
    content = whole.read_bytes()
    broken = {"none": b"", "other": b"code\n1\n", "half": content[: len(content) // 2]}
    for name, found in broken.items():
        file = tmp_path / f"{name}.parquet"
        file.write_bytes(found)
        with pytest.raises(ConfigError, match=rf"\A{file}: .*is it whole") as raised:
            parts(spark, file, FileFormat.PARQUET)
        assert "\n" not in str(raised.value)
    file = tmp_path / "inside.parquet"
    file.write_bytes(content[:1000] + bytes(len(content) // 2) + content[1000 + len(content) // 2 :])
    [part] = parts(spark, file, FileFormat.PARQUET)
    with pytest.raises(ConfigError, match=rf"\A{file}: can't be read: .*; is it whole"), spark_failures():
        part.frame.write.format("noop").mode("overwrite").save()


@pytest.mark.parametrize("content", [b"code\n1\n", b"", gzip.compress(b"code\n1\n")[:15]], ids=["text", "empty", "cut"])
def test_a_compressed_file_that_is_broken_is_named(spark: SparkSession, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.csv.gz"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"\A{file}: .*is (it whole|empty)"):
        parts(spark, file, FileFormat.CSV)


Loader = Callable[..., LoadReport]


@pytest.fixture
def load(spark: SparkSession, database: str, tmp_path: Path) -> Loader:
    """Loads text of CSV into table ``tariffs``; rejects are kept."""
    with psycopg.connect(database, autocommit=True) as connection:
        install(connection)
        connection.execute(
            "CREATE TABLE tariffs (code text PRIMARY KEY, name varchar(20), fee numeric(10,2),"
            " active bool NOT NULL DEFAULT true)"
        )

    def run(text: str, rules: str = "", **plan: Any) -> LoadReport:
        (tmp_path / "load.csv").write_text(text)
        target = PostgresTarget(connection=parse_url(database), table="tariffs", active="active")
        report = LoadReport(load_id="x", directory="tariffs", target="", mode=plan.get("mode", Mode.UPSERT), source=())
        given = {
            "sources": [str(tmp_path / "load.csv")],
            "rejects": str(tmp_path / "rejects"),
            "rules": parse_rules(rules, "r"),
            **plan,
        }
        kept = _kept(spark)
        try:
            Load(spark, target, Plan(**given), report).run()
        finally:
            target.close()
            assert _kept(spark) == kept, "a load lets go of what it has persisted, however it ends"
        return report

    return run


def _kept(spark: SparkSession) -> set[int]:
    return {*spark.sparkContext._jsc.getPersistentRDDs()}


@pytest.fixture
def table(database: str) -> Callable[[str], list[tuple[Any, ...]]]:
    """Asks the database."""

    def ask(query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(database) as connection:
            return connection.execute(query.encode()).fetchall()

    return ask


Ask = Callable[[str], list[tuple[Any, ...]]]
WANTED = "SELECT code, name, fee::text FROM tariffs WHERE active ORDER BY code"


def test_a_load_with_rejects_and_duplicates(load: Loader, table: Ask, tmp_path: Path) -> None:
    """Every row is counted once: loaded, rejected with all reasons, or given way to another of its key."""
    text = (
        'code,name,fee\nA,"😀, ""x""",1\n\nB,old,1\nB,new,2\nC,same,3\nC,same,3\n,none,1\n'
        'D,too long for a name of 20,x\nE,"Gold, de\nF,"a, ""b"", c",1,2\n'
    )
    report = load(text, "duplicates: [fee desc]")
    assert (report.read, report.rejected, report.duplicates, report.accepted) == (9, 4, 2, 3)
    assert report.outcome is Outcome.DONE
    assert {str(reason): count for reason, count in report.reasons.items()} == {
        "code is missing": 1,
        "name is longer than 20 characters": 1,
        "fee is not a number": 1,
        **dict.fromkeys([FAULTS["quote"], FAULTS["columns"]], 1),
    }
    assert table(WANTED) == [("A", '😀, "x"', "1.00"), ("B", "new", "2.00"), ("C", "same", "3.00")]
    [file] = (tmp_path / "rejects").glob("part-*.json")
    first, second, *faulty = (json.loads(line) for line in file.read_text().splitlines())
    assert first["record"] == ",none,1"
    assert [reason["text"] for each in faulty for reason in each["reasons"]] == [
        FAULTS["quote"],
        "has 4 columns; the header has 3",
    ]
    assert (second["file"], second["line"]) == (str(tmp_path / "load.csv"), 9)
    assert [(each["column"], each["rule"]) for each in second["reasons"]] == [("name", "type"), ("fee", "type")]
    again = load(text, "duplicates: [fee desc]")
    assert again.changes == {Change.UNCHANGED: 3} | dict.fromkeys([Change.INSERT, Change.UPDATE, Change.DEACTIVATE], 0)


def test_the_greatest_is_not_the_last_of_the_alphabet(load: Loader, table: Ask) -> None:
    """Numbers in texts are ordered as numbers; a value and a null in each other's place are not the same row."""
    rules = "duplicates: [version desc]"
    report = load("code,name,fee,version\nA,new,1,10\nA,old,2,9\nB,x,,1\nB,,7,\n", rules)
    assert (report.duplicates, report.accepted, report.rejected) == (2, 2, 0)
    assert table("SELECT code, name FROM tariffs ORDER BY code") == [("A", "new"), ("B", "x")]
    report = load("code,name,fee\nC,5,\nC,,5\n")
    assert (report.duplicates, report.accepted, report.rejected) == (0, 0, 2)


def test_rows_of_a_key_that_no_order_decides_are_rejected(load: Loader, table: Ask) -> None:
    """Which of them came last is chance: another number of cores would load another."""
    many = "".join(f"S,{number},1\n" for number in range(500))
    report = load(f"code,name,fee\nA,x,1\nA,y,1\nB,x,1\n{many}")
    assert (report.rejected, report.accepted) == (502, 1)
    assert table(WANTED) == [("B", "x", "1.00")]
    report = load(f"code,name,fee\nA,x,1\nA,y,1\n{many}", "duplicates: [fee desc, line desc]")
    assert (report.rejected, report.duplicates, report.accepted) == (0, 500, 2)
    assert table(WANTED) == [("A", "y", "1.00"), ("B", "x", "1.00"), ("S", "499", "1.00")]


def test_a_replacement_spares_what_was_rejected(load: Loader, table: Ask) -> None:
    """Guarantee 13: half a file takes no directory away, and a bad field no key."""
    load("code,name,fee\n" + "".join(f"{number},n,1\n" for number in range(10)))
    refused = load("code,name,fee\n1,n,1\n", mode=Mode.REPLACE)
    assert refused.outcome is Outcome.REFUSED
    assert refused.why is not None
    assert "9 of 10 keys are missing" in refused.why
    empty = load("code,name,fee\n", mode=Mode.REPLACE)
    assert (empty.read, empty.outcome) == (0, Outcome.REFUSED)
    assert len(table(WANTED)) == 10
    text = "code,name,fee\n" + "".join(f"{number},m,1\n" for number in range(2, 8)) + "8,m,bad\n9,m,1\n9,n,1\n"
    report = load(text, mode=Mode.REPLACE, max_deactivate=Limit(count=2))
    assert report.outcome is Outcome.DONE
    assert report.changes[Change.DEACTIVATE] == 2
    kept = {code: name for code, name, _ in table(WANTED)}
    assert kept == {str(number): "m" for number in range(2, 8)} | {"8": "n", "9": "n"}


def test_a_row_that_only_postgres_refuses(load: Loader, table: Ask, database: str, tmp_path: Path) -> None:
    """It is no matter where another row of its key counts; else rejects are kept before the load fails."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ALTER TABLE tariffs ADD address inet")
    text = "code,fee,address,version\nA,1,nowhere,1\nA,2,10.0.0.1,2\nB,x,,1\n"
    report = load(text, "columns: {name: {optional: true}}\nduplicates: [version desc]")
    assert (report.read, report.accepted, report.rejected, report.duplicates) == (3, 1, 1, 1)
    assert table("SELECT code, host(address) FROM tariffs") == [("A", "10.0.0.1")]
    with pytest.raises(CompactoryError, match=r"invalid input syntax for type inet: … .*, column address; add a rule"):
        load("code,fee,address\nC,1,nowhere\nD,x,\n", "columns: {name: {optional: true}}")
    [kept] = [file.read_text() for file in (tmp_path / "rejects").glob("*.json")]
    assert json.loads(kept)["record"] == "D,x,"
    assert table("SELECT count(*) FROM tariffs") == [(1,)]


def test_rejects_are_not_written_over_what_is_read(load: Loader, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "part-0.json").write_text('{"code":"A","name":null,"fee":"bad"}\n')
    with pytest.raises(ConfigError, match="has files that are to be loaded"):
        load("", sources=[str(folder)], rejects=str(folder))
    assert (folder / "part-0.json").exists()


def test_limits_of_rejects(load: Loader, table: Ask) -> None:
    text = "code,fee\nA,1\nB,x\n"
    lost = load(text, rejects=None)
    assert lost.outcome is Outcome.REFUSED
    assert "nothing would keep them: give --rejects DIR" in str(lost.why)
    assert load(text, max_rejects=Limit(percent=10)).outcome is Outcome.REFUSED
    assert table(WANTED) == []
    told = load(text, rejects=None, dry_run=True)
    assert (told.outcome, told.changes[Change.INSERT]) == (Outcome.REFUSED, 1), "what the rest would change is shown"
    dry = load(text, max_rejects=Limit(percent=50), dry_run=True)
    assert (dry.outcome, dry.changes[Change.INSERT]) == (Outcome.DRY_RUN, 1)
    assert table(WANTED) == []
    assert load(text, rejects=None, max_rejects=Limit(count=1)).outcome is Outcome.DONE
    assert table(WANTED) == [("A", None, "1.00")]


def test_a_field_that_no_object_has_keeps_what_the_table_has(load: Loader, table: Ask) -> None:
    load("code,name,fee\nA,x,1\n")
    report = load('{"code": "A", "fee": 2}\n{"code": "B", "nmae": "y"}\n', format=FileFormat.JSON)
    assert "nmae" in str(report.notes)
    assert table(WANTED) == [("A", "x", "2.00"), ("B", None, None)]
    load('{"code": "B", "nmae": "y"}\n', "columns: {name: {from: nmae}}", format=FileFormat.JSON)
    assert table(WANTED) == [("A", "x", "2.00"), ("B", "y", None)]


def test_no_rows_and_folders_of_others(load: Loader, table: Ask, tmp_path: Path) -> None:
    assert load("code,fee\n").outcome is Outcome.DONE
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "important.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"holds 'important.txt'"):
        load("code,fee\nA,1\n", rejects=str(tmp_path / "mine"))
    assert table(WANTED) == []


def test_lines_of_rejects_where_a_file_is_read_in_blocks(
    spark: SparkSession, load: Loader, table: Ask, tmp_path: Path
) -> None:
    """They are counted when there are rejects, of several files and headers, quotes and blank lines among them."""
    folder = tmp_path / "in"
    folder.mkdir()
    bad = {7, 150, 233, 399}
    lines = ["code,name,fee", *(f'{number},"n ""{number}""",{"x" if number in bad else 1}' for number in range(2, 400))]
    (folder / "a#1 %20?.csv").write_text("\n".join([*lines[:100], *lines[100:]]) + "\n")
    (folder / "b.csv").write_text("fee,code\n\n1,b1\nx,b2\n")
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1000")
    try:
        report = load("", "columns: {name: {optional: true}}", sources=[str(folder)])
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)
    assert (report.read, report.rejected, len(table(WANTED))) == (400, 5, 395)
    found = [
        json.loads(line) for file in (tmp_path / "rejects").glob("*.json") for line in file.read_text().splitlines()
    ]
    places = {(Path(each["file"]).name, each["line"]) for each in found}
    assert places == {("a#1 %20?.csv", line) for line in bad} | {("b.csv", 4)}


def test_lines_of_rejects_while_executors_come_and_go(
    spark: SparkSession, load: Loader, tmp_path: Path, once_staged: Callable[[Callable[[], object]], None]
) -> None:
    """A cluster that grows between two jobs of a load must not divide the files anew: lines would be wrong."""
    spark.conf.set("spark.sql.files.openCostInBytes", "1")
    spark.conf.set("spark.sql.leafNodeDefaultParallelism", "2")
    once_staged(lambda: spark.conf.set("spark.sql.leafNodeDefaultParallelism", "7"))
    try:
        load("code,fee\n" + "".join(f"{number},{'x' if number in {7, 150, 399} else 1}\n" for number in range(2, 400)))
    finally:
        for name in ("openCostInBytes", "minPartitionNum"):
            spark.conf.unset(f"spark.sql.files.{name}")
        spark.conf.unset("spark.sql.leafNodeDefaultParallelism")
    rejects = [
        json.loads(line) for file in (tmp_path / "rejects").glob("*.json") for line in file.read_text().splitlines()
    ]
    assert {reject["line"] for reject in rejects} == {7, 150, 399}


@pytest.fixture
def once_staged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Something happens when the rows of a load are staged, before its rejects are looked for."""

    def arrange(happens: Callable[[], object]) -> None:
        receive = PostgresTarget.receive

        def receive_first(target: PostgresTarget, *given: Any) -> Any:
            received = receive(target, *given)
            happens()
            return received

        monkeypatch.setattr(PostgresTarget, "receive", receive_first)

    return arrange


def test_a_source_that_changes_between_two_looks_at_it(
    load: Loader, table: Ask, tmp_path: Path, once_staged: Callable[[Callable[[], object]], None]
) -> None:
    """Rejects are looked for once more when the others are staged: what is told was read, or nothing is done."""
    once_staged(lambda: (tmp_path / "load.csv").write_text("code,fee\nA,1\nB,2\n"))
    with pytest.raises(CompactoryError, match="changed while it was read; nothing was changed"):
        load("code,fee\nA,1\nB,x\n")
    assert table(WANTED) == []
