"""Texts and values of a source → values of Postgres' types, as Spark columns, and what is wrong with others.

Stricter than either side by itself: Spark takes ``2024`` for a date, ``1d`` for a fraction and rounds money; Postgres
drops the offset of a time for a column without one. All of that is a reject here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from ..column_types import ColumnType

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = ["Cast", "Problem", "Spelling", "as_text", "cast"]

_NUMBER: Final = r"\A[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\z"
_PLAIN: Final = r"\A[+-]?(\d+\.?\d*|\.\d+)\z"
_DATE: Final = r"\d{4}-\d{2}-\d{2}"
_TIME: Final = r"([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6}0*)?)?)?"
_OFFSET: Final = r" ?(Z|[+-]\d{2}(:?\d{2})?)\z"
_UUID: Final = r"\A[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\z"
_TRUE: Final = ("true", "t", "yes", "y", "on", "1")
_FALSE: Final = ("false", "f", "no", "n", "off", "0")
_DIGITS: Final = 38
_INTEGERS: Final = ("smallint", "integer", "bigint")
_WITH_ZONE: Final = "timestamp with time zone"
_ZONE_SIGNS: Final = "XxOzVZ"
"""Letters of Spark's datetime patterns that stand for an offset or a zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How values of a column are written."""

    format: str | None = None
    decimal: str = "."
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a value where ``condition`` is true."""

    text: str
    condition: Column


@dataclass(frozen=True, slots=True)
class Cast:
    """The value in its type; null where the text is, or where it has a problem. There is no null without a reason."""

    value: Column
    problems: Sequence[Problem]


def as_text(value: Column, held: DataType, kind: ColumnType) -> Column:
    """A value that Spark holds as ``held``, as the text that :func:`cast` makes a ``kind`` of."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import ArrayType, FractionalType, MapType, StructType, TimestampType, VariantType

    if isinstance(held, ArrayType | MapType | StructType | VariantType):
        return sf.to_json(value)
    if isinstance(held, FractionalType) and kind.name in _INTEGERS:
        whole = value.try_cast(f"decimal({_DIGITS},0)")  # pandas makes fractions of whole numbers among nulls
        return sf.when(whole == value, whole.cast("string")).otherwise(value.cast("string"))
    if isinstance(held, TimestampType) and kind.name == _WITH_ZONE:
        return sf.concat(value.cast("string"), sf.lit("Z"))  # a moment already, whatever zone the rules say
    return value.cast("string")


def cast(text: Column, kind: ColumnType, spelling: Spelling) -> Cast:
    """A text, not blank unless the type is one of text, as a value of this type."""
    if kind.name == "numeric":
        return _numeric(_number(text, spelling), kind)
    if kind.name in _INTEGERS:
        return _integer(_number(text, spelling), kind)
    if kind.name in {"real", "double precision"}:
        return _fraction(_number(text, spelling), kind)
    if kind.name.startswith("timestamp "):
        return _timestamp(text, kind, spelling)
    casts: dict[str, Callable[[Column, ColumnType, Spelling], Cast]] = {
        "boolean": _boolean,
        "date": _date,
        "bytea": _bytes,
        "uuid": _uuid,
        "json": _json,
        "jsonb": _json,
    }
    return casts.get(kind.name, _text)(text, kind, spelling)


def _number(text: Column, spelling: Spelling) -> Column:
    """Without blanks around it, with a decimal point, and without thousands where the decimal sign is a comma."""
    from pyspark.sql import functions as sf

    if spelling.decimal == ",":
        return sf.replace(
            sf.regexp_replace(sf.trim(text), r"(?<=\d)[. \u00a0\u202f](?=\d{3}(\D|\z))", ""), sf.lit(","), sf.lit(".")
        )
    return sf.trim(text)


def _integer(text: Column, kind: ColumnType, _spelling: Spelling | None = None) -> Cast:
    value = text.try_cast(kind.spark)
    none = value.isNull()
    return Cast(
        value,
        [
            Problem("is not a whole number", none & ~text.rlike(r"\A[+-]?\d+\z")),
            Problem(f"does not fit {kind}", none & text.rlike(r"\A[+-]?\d+\z")),
        ],
    )


def _numeric(text: Column, kind: ColumnType) -> Cast:
    from pyspark.sql import functions as sf

    if not kind.modifiers:
        return _digits(text, kind, r"\A-?\d{1,131072}(\.\d{0,16383})?\z")
    precision, scale = (*kind.modifiers, 0)[:2]
    if kind.spark == "string":
        most = max(precision - scale, 1)
        return _digits(text, kind, rf"\A-?\d{{1,{most}}}(\.\d{{0,{max(scale, 0)}}}0*)?\z")
    value = text.try_cast(kind.spark)
    exact = text.try_cast(f"decimal({_DIGITS},{_DIGITS - precision + scale})")
    none = value.isNull()
    lossy = (exact != value) | _rounds(text, value, scale, _DIGITS - precision + scale)
    return Cast(
        sf.when(~lossy, value),
        [
            Problem("is not a number", none & ~text.rlike(_NUMBER)),
            Problem(f"does not fit {kind}", none & text.rlike(_NUMBER)),
            Problem(f"has more than {scale} decimals", lossy),
        ],
    )


def _rounds(text: Column, value: Column, scale: int, seen: int) -> Column:
    """Whether decimals are lost beyond those that Spark has seen: it rounds what no decimal of its own holds."""
    from pyspark.sql import functions as sf

    long = (sf.octet_length(text) > seen) & text.rlike(rf"\A[+-]?\d*\.\d{{{scale}}}0*[1-9]\d*\z")
    return long | _off(text, value)


def _off(text: Column, value: Column) -> Column:
    """Whether a number with a negative exponent is another one now."""
    from pyspark.sql import functions as sf

    small = sf.contains(text, sf.lit("e-")) | sf.contains(text, sf.lit("E-"))
    return small & (text.try_cast("double") != value.try_cast("double"))


def _digits(text: Column, kind: ColumnType, fits: str) -> Cast:
    """A number that no decimal of Spark's holds, spelt as Postgres does."""
    from pyspark.sql import functions as sf

    held = text.try_cast("decimal(38,18)")
    whole = sf.regexp_replace(held.cast("string"), r"\.?0+\z", "")
    value = sf.when(text.rlike(_PLAIN), text).when(~_off(text, held), whole)
    for pattern, by in ((r"\A\+", ""), (r"\A(-?)0+(?=\d)", "$1"), (r"\A(-?)\.", "$10."), (r"\.\z", "")):
        value = sf.regexp_replace(value, pattern, by)
    value = sf.regexp_replace(value, r"\A-(0(\.0*)?)\z", "$1")
    good = value.rlike(fits)
    return Cast(
        sf.when(good, value),
        [
            Problem("is not a number", ~text.rlike(_NUMBER)),
            Problem(f"does not fit {kind}", text.rlike(_NUMBER) & ~sf.coalesce(good, sf.lit(False))),
        ],
    )


def _fraction(text: Column, kind: ColumnType) -> Cast:
    from pyspark.sql import functions as sf

    value = text.try_cast(kind.spark)
    number = text.rlike(_NUMBER)
    infinite = sf.abs(value) == float("inf")
    return Cast(
        sf.when(number & ~infinite, value),
        [Problem("is not a number", ~number), Problem(f"does not fit {kind}", number & infinite)],
    )


def _boolean(text: Column, _kind: ColumnType, _spelling: Spelling) -> Cast:
    from pyspark.sql import functions as sf

    word = sf.lower(sf.trim(text))
    value = sf.when(word.isin(*_TRUE), sf.lit(True)).when(word.isin(*_FALSE), sf.lit(False))
    return Cast(value, [Problem("is neither true nor false", value.isNull())])


def _date(text: Column, _kind: ColumnType, spelling: Spelling) -> Cast:
    from pyspark.sql import functions as sf

    written = sf.trim(text)
    if spelling.format:
        value = sf.try_to_timestamp(written, sf.lit(spelling.format)).cast("date")
    else:
        midnight = written.rlike(rf"\A{_DATE}[ T]00:00(:00(\.0+)?)?\z")
        value = sf.when(written.rlike(rf"\A{_DATE}\z"), written.try_cast("date"))
        value = value.when(midnight, sf.left(written, sf.lit(10)).try_cast("date"))
    value = sf.when(value >= sf.lit("0001-01-01").cast("date"), value)
    return Cast(value, [Problem(f"is not a date {_how(spelling, 'YYYY-MM-DD')}", value.isNull())])


def _timestamp(text: Column, kind: ColumnType, spelling: Spelling) -> Cast:
    from pyspark.sql import functions as sf

    written = sf.trim(text)
    problems: list[Problem] = []
    if spelling.format:
        value = local = sf.try_to_timestamp(written, sf.lit(spelling.format))
        offset = sf.lit(_has_zone(spelling.format))
    else:
        value = local = sf.when(
            written.rlike(rf"\A{_DATE}{_TIME}\z"), written.try_cast("timestamp_ntz").cast("timestamp")
        )
        offset = written.rlike(rf"\A{_DATE}{_TIME}{_OFFSET}")
    if kind.name == _WITH_ZONE:
        there = _in_zone(local, spelling.time_zone)
        value = sf.when(local.isNotNull() & ~(offset if spelling.format else sf.lit(False)), there.value)
        value = value.otherwise(local if spelling.format else sf.when(offset, _moment(written)))
        problems = [Problem(item.text, ~offset & item.condition) for item in there.problems]
    elif not spelling.format:
        problems = [Problem("has an offset, and the column has no time zone", offset)]
    value = _rounded(value, kind.fraction or 0)
    value = sf.when(value >= sf.lit("0001-01-01").cast("timestamp"), value).cast(kind.spark)
    other = value.isNull() & ~reduce(or_, [problem.condition for problem in problems], sf.lit(False))
    return Cast(value, [Problem(f"is not a time {_how(spelling, 'YYYY-MM-DD HH:MM:SS')}", other), *problems])


def _has_zone(pattern: str) -> bool:
    """Whether times of this pattern say their offset; quoted text does not, but for the Z that stands for UTC."""
    letters = "Z" if "'Z'" in pattern else ""
    return any(sign in letters + re.sub(r"'[^']*'", "", pattern) for sign in _ZONE_SIGNS)


def _moment(written: Column) -> Column:
    """A time with an offset; Spark wants no blank before it, and a colon in it."""
    from pyspark.sql import functions as sf

    joined = sf.regexp_replace(written, r" (?=Z|[+-])", "")
    return sf.regexp_replace(joined, r"([+-]\d{2})(\d{2})\z", "$1:$2").try_cast("timestamp")


def _in_zone(local: Column, zone: str) -> Cast:
    """The moment at which a clock there shows this time, if there is one."""
    from pyspark.sql import functions as sf

    if zone == "UTC":
        return Cast(local, [])
    value = sf.to_utc_timestamp(local, zone)
    skipped = sf.coalesce(sf.from_utc_timestamp(value, zone) != local, sf.lit(False))
    return Cast(sf.when(~skipped, value), [Problem(f"is no time in {zone}: clocks skipped it", skipped)])


def _rounded(value: Column, fraction: int) -> Column:
    from pyspark.sql import functions as sf

    if fraction >= 6:
        return value
    scale = 10 ** (6 - fraction)
    return sf.timestamp_micros(sf.floor((sf.unix_micros(value) + scale // 2) / scale).cast("bigint") * scale)


def _bytes(text: Column, _kind: ColumnType, spelling: Spelling) -> Cast:
    from pyspark.sql import functions as sf

    written = sf.trim(text)
    if spelling.format == "base64":
        value = sf.try_to_binary(written, sf.lit("base64"))
        return Cast(value, [Problem("is not base64", value.isNull())])
    digits = sf.regexp_replace(written, r"\A\\x", "")
    value = sf.when(digits.rlike(r"\A([0-9a-fA-F]{2})*\z"), sf.unhex(digits))
    return Cast(value, [Problem(r"is not bytes in hexadecimal digits, as in \x00ff", value.isNull())])


def _uuid(text: Column, _kind: ColumnType, _spelling: Spelling) -> Cast:
    from pyspark.sql import functions as sf

    value = sf.lower(sf.trim(text))
    good = value.rlike(_UUID)
    return Cast(sf.when(good, value), [Problem("is not a UUID", ~good)])


def _json(text: Column, kind: ColumnType, _spelling: Spelling) -> Cast:
    from pyspark.sql import functions as sf

    good = sf.try_parse_json(text).isNotNull()
    problems = [Problem("is not JSON", ~good)]
    if kind.name == "jsonb":
        zero = sf.contains(text, sf.lit("\\u0000"))
        problems.append(Problem("has \\u0000, which jsonb does not hold", good & zero))
        good &= ~zero
    return Cast(sf.when(good, text), problems)


def _text(text: Column, kind: ColumnType, _spelling: Spelling) -> Cast:
    from pyspark.sql import functions as sf

    zero = sf.contains(text, sf.lit("\0"))
    problems = [Problem("has a NUL character, which Postgres does not hold", zero)]
    good = ~zero
    if kind.length is not None:
        long = sf.char_length(text) > kind.length
        problems.append(Problem(f"is longer than {kind.length} characters", long))
        good &= ~long
        text = sf.rpad(text, kind.length, " ") if kind.name == "character" else text
    return Cast(sf.when(good, text), problems)


def _how(spelling: Spelling, otherwise: str) -> str:
    return f"like {spelling.format or otherwise}"
