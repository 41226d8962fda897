"""Texts and values of a source → values of Postgres' types, and the problems of the others, in Spark's SQL.

Stricter than either side by itself: Spark takes ``2024`` for a date, ``1d`` for a fraction and rounds money; Postgres
drops the offset of a time for a column without one. All of that is a reject here.

Expressions are SQL rather than Columns: a Column takes a call to the JVM for each of its parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import DataType

from ..column_types import ColumnType
from ..identifier import literal

__all__ = ["Cast", "Problem", "Spelling", "as_text", "cast"]

_NUMBER: Final = r"r'\A[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\z'"
_PLAIN: Final = r"r'\A[+-]?(\d+\.?\d*|\.\d+)\z'"
_WHOLE: Final = r"r'\A[+-]?\d+\z'"
_DATE: Final = r"\d{4}-\d{2}-\d{2}"
_TIME: Final = r"([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?"
_OFFSET: Final = r" ?(Z|[+-]\d{2}(:?\d{2})?)\z"
_UUID: Final = r"r'\A[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\z'"
_TRUE: Final = "('true', 't', 'yes', 'y', 'on', '1')"
_FALSE: Final = "('false', 'f', 'no', 'n', 'off', '0')"
_DIGITS: Final = 38
_INTEGERS: Final = ("smallint", "integer", "bigint")
_WITH_ZONE: Final = "timestamp with time zone"
_ZONE_SIGNS: Final = "XxOzVZ"
"""Letters of Spark's datetime patterns that stand for an offset or a zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """The spelling of a column's values."""

    format: str | None = None
    decimal: str = "."
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of values for which ``condition`` is true."""

    text: str
    condition: str


@dataclass(frozen=True, slots=True)
class Cast:
    """The value in its type; null where the text is, or where it has a problem. There is no null without a reason."""

    value: str
    problems: Sequence[Problem]


def as_text(value: str, data_type: DataType, kind: ColumnType) -> str:
    """SQL of a value of type ``data_type`` as the text that :func:`cast` converts to ``kind``."""
    name = data_type.typeName()
    if name in {"array", "map", "struct", "variant"}:
        return f"to_json({value})"
    if name in {"decimal", "double", "float"} and kind.name in _INTEGERS:
        whole = f"try_cast({value} AS decimal({_DIGITS},0))"  # pandas makes fractions of whole numbers among nulls
        return f"string(if({whole} = {value}, string({whole}), string({value})))"
    if name == "timestamp" and kind.name == _WITH_ZONE:
        return f"concat(string({value}), 'Z')"  # a moment already, whatever zone the rules say
    return f"string({value})"


def cast(text: str, kind: ColumnType, spelling: Spelling) -> Cast:
    """SQL of a text as a value of this type. The text is not blank unless the type is one of text."""
    if kind.name == "numeric":
        return _numeric(_number(text, spelling), kind)
    if kind.name in _INTEGERS:
        return _integer(_number(text, spelling), kind)
    if kind.name in {"real", "double precision"}:
        return _fraction(_number(text, spelling), kind)
    if kind.name.startswith("timestamp "):
        return _timestamp(f"trim({text})", kind, spelling)
    if kind.name == "date":
        return _date(f"trim({text})", spelling)
    if kind.name == "bytea":
        return _bytes(f"trim({text})", spelling)
    if kind.name in {"json", "jsonb"}:
        return _json(text, kind)
    if kind.name == "boolean":
        word = f"lower(trim({text}))"
        value = f"CASE WHEN {word} IN {_TRUE} THEN true WHEN {word} IN {_FALSE} THEN false END"
        return Cast(value, [Problem("is neither true nor false", f"({value}) IS NULL")])
    if kind.name == "uuid":
        return _good(f"lower(trim({text}))", f"lower(trim({text})) RLIKE {_UUID}", "is not a UUID")
    return _characters(text, kind)


def _good(value: str, good: str, otherwise: str) -> Cast:
    return Cast(f"if({good}, {value}, NULL)", [Problem(otherwise, f"NOT ({good})")])


def _number(text: str, spelling: Spelling) -> str:
    """Without blanks around it, with a decimal point, and without thousands where the decimal sign is a comma."""
    if spelling.decimal == ",":
        thousands = r"r'(?<=\d)[. \u00a0\u202f](?=\d{3}(\D|\z))'"
        return f"replace(regexp_replace(trim({text}), {thousands}, ''), ',', '.')"
    return f"trim({text})"


def _integer(text: str, kind: ColumnType) -> Cast:
    value = f"try_cast({text} AS {kind.spark})"
    whole = f"{text} RLIKE {_WHOLE}"
    return Cast(
        value,
        [
            Problem("is not a whole number", f"{value} IS NULL AND NOT {whole}"),
            Problem(f"does not fit {kind}", f"{value} IS NULL AND {whole}"),
        ],
    )


def _numeric(text: str, kind: ColumnType) -> Cast:
    if not kind.modifiers:
        return _digits(text, kind, r"r'\A-?\d{1,131072}(\.\d{0,16383})?\z'")
    precision, scale = (*kind.modifiers, 0)[:2]
    if kind.spark == "string":
        digits = max(precision - scale, 1)
        return _digits(text, kind, rf"r'\A-?\d{{1,{digits}}}(\.\d{{0,{max(scale, 0)}}}0*)?\z'")
    visible = _DIGITS - precision + scale
    value = f"try_cast({text} AS {kind.spark})"
    exact = f"try_cast({text} AS decimal({_DIGITS},{visible}))"
    lossy = f"({exact} <> {value} OR {_rounds(text, scale, visible)} OR {_off(text, value)})"
    return Cast(
        f"if(NOT {lossy}, {value}, NULL)",
        [
            Problem("is not a number", f"{value} IS NULL AND NOT {text} RLIKE {_NUMBER}"),
            Problem(f"does not fit {kind}", f"{value} IS NULL AND {text} RLIKE {_NUMBER}"),
            Problem(f"has more than {scale} decimals", lossy),
        ],
    )


def _rounds(text: str, scale: int, visible: int) -> str:
    """SQL that is true where decimals are lost beyond the first 38 digits, which Spark rounds before it compares."""
    return rf"(octet_length({text}) > {visible} AND {text} RLIKE r'\A[+-]?\d*\.\d{{{scale}}}0*[1-9]\d*\z')"


def _off(text: str, value: str) -> str:
    """SQL that is true where a number with a negative exponent has changed."""
    small = f"(contains({text}, 'e-') OR contains({text}, 'E-'))"
    return f"({small} AND try_cast({text} AS double) <> try_cast({value} AS double))"


def _digits(text: str, kind: ColumnType, fits: str) -> Cast:
    """A number that no decimal of Spark's holds, spelt as Postgres does."""
    decimal = f"try_cast({text} AS decimal(38,18))"
    whole = rf"regexp_replace(string({decimal}), r'\.?0+\z', '')"
    value = f"CASE WHEN {text} RLIKE {_PLAIN} THEN {text} WHEN NOT {_off(text, decimal)} THEN {whole} END"
    for pattern, by in (
        (r"\A\+", ""),
        (r"\A(-?)0+(?=\d)", "$1"),
        (r"\A(-?)\.", "$10."),
        (r"\.\z", ""),
        (r"\A-(0(\.0*)?)\z", "$1"),
    ):
        value = f"regexp_replace({value}, r'{pattern}', '{by}')"
    good = f"{value} RLIKE {fits}"
    return Cast(
        f"if({good}, {value}, NULL)",
        [
            Problem("is not a number", f"NOT {text} RLIKE {_NUMBER}"),
            Problem(f"does not fit {kind}", f"{text} RLIKE {_NUMBER} AND NOT coalesce({good}, false)"),
        ],
    )


def _fraction(text: str, kind: ColumnType) -> Cast:
    value = f"try_cast({text} AS {kind.spark})"
    number = f"{text} RLIKE {_NUMBER}"
    infinite = f"abs({value}) = double('Infinity')"
    return Cast(
        f"if({number} AND NOT {infinite}, {value}, NULL)",
        [Problem("is not a number", f"NOT {number}"), Problem(f"does not fit {kind}", f"{number} AND {infinite}")],
    )


def _date(text: str, spelling: Spelling) -> Cast:
    if spelling.format:
        value = f"date(try_to_timestamp({text}, {literal(spelling.format)}))"
    else:
        midnight = rf"{text} RLIKE r'\A{_DATE}[ T]00:00(:00(\.0+)?)?\z'"
        value = (
            rf"CASE WHEN {text} RLIKE r'\A{_DATE}\z' THEN try_cast({text} AS date)"
            f" WHEN {midnight} THEN try_cast(left({text}, 10) AS date) END"
        )
    value = f"if({value} >= DATE'0001-01-01', {value}, NULL)"
    return Cast(value, [Problem(f"is not a date {_how(spelling, 'YYYY-MM-DD')}", f"{value} IS NULL")])


def _timestamp(text: str, kind: ColumnType, spelling: Spelling) -> Cast:
    zoned = kind.name == _WITH_ZONE
    if spelling.format:
        local = moment = f"try_to_timestamp({text}, {literal(spelling.format)})"
        offset = str(_has_zone(spelling.format)).lower()
    else:
        clock = f"timestamp(try_cast({text} AS timestamp_ntz))"
        local = rf"if({text} RLIKE r'\A{_DATE}{_TIME}\z', {clock}, NULL)"
        offset = rf"{text} RLIKE r'\A{_DATE}{_TIME}{_OFFSET}'"
        moment = _moment(text)
    value, problems = local, list[Problem]()
    if zoned:
        zoned_value, problems = _in_zone(local, spelling.time_zone, offset)
        value = f"if({offset}, {moment}, {zoned_value})"
    elif not spelling.format:
        problems = [Problem("has an offset, and the column has no time zone", offset)]
    value = _rounded(value, kind.fraction or 0, text)
    value = f"CAST(if({value} >= TIMESTAMP'0001-01-01', {value}, NULL) AS {kind.spark})"
    unexplained = " AND ".join([f"{value} IS NULL", *(f"NOT ({problem.condition})" for problem in problems)])
    return Cast(value, [Problem(f"is not a time {_how(spelling, 'YYYY-MM-DD HH:MM:SS')}", unexplained), *problems])


def _has_zone(pattern: str) -> bool:
    """Return True if times of this pattern have an offset. Of quoted text only Z is one: UTC."""
    letters = "Z" if "'Z'" in pattern else ""
    return any(sign in letters + re.sub(r"'[^']*'", "", pattern) for sign in _ZONE_SIGNS)


def _moment(text: str) -> str:
    """A time with an offset; Spark wants no blank before it, and a colon in it."""
    joined = f"regexp_replace({text}, r' (?=Z|[+-])', '')"
    return rf"try_cast(regexp_replace({joined}, r'([+-]\d{{2}})(\d{{2}})\z', '$1:$2') AS timestamp)"


def _in_zone(local: str, zone: str, offset: str) -> tuple[str, list[Problem]]:
    """The moment at which a clock there shows this time, if there is one."""
    if zone == "UTC":
        return local, []
    value = f"to_utc_timestamp({local}, {literal(zone)})"
    skipped = f"coalesce(from_utc_timestamp({value}, {literal(zone)}) <> {local}, false)"
    problem = Problem(f"is no time in {zone}: clocks skipped it", f"NOT {offset} AND {skipped}")
    return f"if({skipped}, NULL, {value})", [problem]


def _rounded(value: str, fraction: int, text: str) -> str:
    """The time with this many digits of a second; Spark has cut off those after the sixth."""
    if fraction >= 6:
        return rf"timestamp_micros(unix_micros({value}) + if({text} RLIKE r'\.\d{{6}}[5-9]', 1, 0))"
    scale = 10 ** (6 - fraction)
    return f"timestamp_micros(bigint(floor((unix_micros({value}) + {scale // 2}) / {scale})) * {scale})"


def _bytes(text: str, spelling: Spelling) -> Cast:
    if spelling.format == "base64":
        value, otherwise = f"try_to_binary({text}, 'base64')", "is not base64"
    else:
        digits = rf"regexp_replace({text}, r'\A\\x', '')"
        value = rf"if({digits} RLIKE r'\A([0-9a-fA-F]{{2}})*\z', unhex({digits}), NULL)"
        otherwise = r"is not bytes in hexadecimal digits, as in \x00ff"
    return Cast(value, [Problem(otherwise, f"{value} IS NULL")])


def _json(text: str, kind: ColumnType) -> Cast:
    good = f"try_parse_json({text}) IS NOT NULL"
    if kind.name == "json":
        return _good(text, good, "is not JSON")
    zero = rf"contains({text}, r'\u0000')"
    return Cast(
        f"if({good} AND NOT {zero}, {text}, NULL)",
        [
            Problem("is not JSON", f"NOT ({good})"),
            Problem("has \\u0000, which jsonb does not hold", f"{good} AND {zero}"),
        ],
    )


def _characters(text: str, kind: ColumnType) -> Cast:
    zero = f"contains({text}, char(0))"
    good, problems = f"NOT {zero}", [Problem("has a NUL character, which Postgres does not hold", zero)]
    value = text
    if kind.length is not None:
        long = f"char_length({text}) > {kind.length}"
        problems.append(Problem(f"is longer than {kind.length} characters", long))
        good = f"{good} AND NOT {long}"
        value = f"rpad({text}, {kind.length}, ' ')" if kind.name == "character" else text
    return Cast(f"if({good}, {value}, NULL)", problems)


def _how(spelling: Spelling, otherwise: str) -> str:
    return f"like {spelling.format or otherwise}"
