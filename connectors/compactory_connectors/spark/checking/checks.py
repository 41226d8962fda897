"""Records → rows of the target with what is wrong with them. A row has all its reasons, not the first alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from compactory.errors import ConfigError

from ..identifier import quoted
from ..rules.mapping import Filling, Mapped
from ..rules.parts import FAULT, FAULTS, FILE, LINE, PLACE, RAW, Part, position
from ..rules.rules import Rules
from .casting import Spelling, as_text, cast

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["ORDER", "REASONS", "Checks", "Reason"]

REASONS: Final = "_reasons"
"""Column of what is wrong, as numbers of :attr:`Checks.reasons`; null where nothing is."""
ORDER: Final = "_order"
"""Beginning of the names of columns of the source by which one of several rows of a key is chosen."""

_BLANK_IS_TEXT: Final = ("text", "character varying", "character", "bytea", "json", "jsonb")
_HELD_AS_TEXT: Final = ("numeric", "uuid", "interval", "inet", "cidr", "time without time zone", "time with time zone")
"""Types whose values Spark holds as texts, and of which an empty text is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a row is rejected. ``column`` is empty where it is about the whole record."""

    column: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.column} {self.text}" if self.column else self.text

    def rejects_a_value_of(self, column: str) -> bool:
        """Whether the column has a value, and it is what is wrong."""
        return self.column == column and self.rule != "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A column: its value; whether anything is wrong, which is asked of each row; and what, only of those."""

    value: Column
    broken: Column
    reasons: Sequence[tuple[Reason, Column]]


@dataclass(slots=True)
class Checks:
    """Judges the parts of one source. Belongs to one thread."""

    mapped: Mapped
    rules: Rules
    references: Mapping[str, DataFrame] = field(default_factory=dict)
    """By column: frames of one column ``value`` of text, each value once, that its reference allows."""
    reasons: list[Reason] = field(default_factory=list)
    _literals: list[tuple[str, str, Column]] = field(default_factory=list)

    def frame(self, parts: Sequence[Part]) -> DataFrame:
        """All rows: the target's columns, the places of :mod:`parts`, and :data:`REASONS`.

        Raises ConfigError for expressions, patterns and bounds that can't be used, all at once.
        """
        frames = [self._part(part) for part in parts]
        self._check_literals(parts[0].frame)
        return self._across(reduce(lambda one, other: one.unionByName(other), frames))

    def number(self, reason: Reason) -> int:
        """The number of a reason, the same one each time."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason)

    def _part(self, part: Part) -> DataFrame:
        from pyspark.sql import functions as sf

        named = _named(part)
        places = self.mapped.places[part.layout.label]
        texts = [self._text(named, item, places.get(item.name)).alias(_text(item)) for item in self.mapped.fillings]
        staged = named.select(*texts, *PLACE, RAW, FAULT, *self._order(part))
        judged = [self._judged(item) for item in self.mapped.fillings]
        valued = staged.select("*", *[each.value for each in judged])
        broken = reduce(or_, [each.broken for each in judged], sf.col(FAULT).isNotNull())
        several = [sf.when(when, self.number(reason)) for each in judged for reason, when in each.reasons]
        reasons = sf.when(broken, self._faults().otherwise(sf.array_compact(sf.array(*several))))
        kept = [name for name in staged.columns if name.startswith(ORDER)]
        names = [quoted(item.name) for item in self.mapped.fillings]
        return valued.select(*names, *PLACE, RAW, FAULT, *kept, reasons.alias(REASONS))

    def _faults(self) -> Column:
        from pyspark.sql import functions as sf

        numbers = {code: self.number(Reason(column="", rule="record", text=text)) for code, text in FAULTS.items()}
        first, *others = numbers.items()
        given = sf.split_part(FAULT, sf.lit(":"), sf.lit(1))
        found = sf.when(given == first[0], sf.array(sf.lit(first[1])))
        for code, number in others:
            found = found.when(given == code, sf.array(sf.lit(number)))
        return found

    def _text(self, named: DataFrame, item: Filling, place: int | None) -> Column:
        """What fills a column, as text: trimmed, without the texts that stand for null."""
        from pyspark.sql import functions as sf

        rule = item.rule
        if rule.value is not None:
            value = sf.lit(rule.value)
        elif rule.expression is not None or place is not None:
            value = _given(named, item, place)
        else:
            value = sf.lit(None).cast("string")
        value = sf.trim(value) if rule.trim else value
        nulls = {*rule.nulls, *self.rules.read.nulls}
        if nulls:
            value = sf.when(~value.isin(*nulls), value)
        if item.type.name in _HELD_AS_TEXT or (item.type.name not in _BLANK_IS_TEXT and item.type.spark != "string"):
            value = sf.when(sf.trim(value) != "", value)
        return sf.coalesce(value, sf.lit(rule.default)) if rule.default is not None else value

    def _judged(self, item: Filling) -> _Judged:
        """The value of a column, and when it is rejected for which reason."""
        text, rule, done = _column(_text(item)), item.rule, _column(item.name)
        value = cast(text, item.type, self._spelling(item))
        reasons: list[tuple[Reason, Column]] = []
        broken = text.isNull() if item.required else text.isNotNull() & done.isNull()
        broken = broken | done.isNull() if item.required else broken

        def reject(kind: str, why: str, condition: Column) -> Column:
            reasons.append((Reason(column=item.name, rule=kind, text=why), condition))
            return condition

        if item.required:
            reject("required", "is missing", text.isNull())
        for problem in value.problems:
            reject("type", problem.text, text.isNotNull() & done.isNull() & problem.condition)
        if rule.type is not None and rule.type != item.type:
            also = cast(text, rule.type, self._spelling(item))
            broken |= text.isNotNull() & also.value.isNull()
            for problem in also.problems:
                reject("type", problem.text, text.isNotNull() & problem.condition)
        if rule.pattern is not None:
            broken |= reject("pattern", f"does not match {rule.pattern}", ~text.rlike(rf"\A(?:{rule.pattern})\z"))
        if rule.least is not None:
            broken |= reject(
                "range", f"is less than {rule.least}", _less(item, done, self._literal(item, "min", rule.least))
            )
        if rule.most is not None:
            broken |= reject(
                "range", f"is greater than {rule.most}", _less(item, self._literal(item, "max", rule.most), done)
            )
        if rule.allowed is not None:
            allowed = [self._literal(item, "allowed", each) for each in rule.allowed]
            broken |= reject("allowed", "is not one of the allowed values", ~done.isin(*allowed))
        return _Judged(value=value.value.alias(item.name), broken=broken, reasons=reasons)

    def _spelling(self, item: Filling) -> Spelling:
        read, rule = self.rules.read, item.rule
        zone = rule.time_zone or read.time_zone
        return Spelling(format=rule.format, decimal=rule.decimal or read.decimal, time_zone=zone)

    def _literal(self, item: Filling, key: str, text: str) -> Column:
        """A text of the rules as a value of the column: dates and numbers there are spelt as in Postgres."""
        from pyspark.sql import functions as sf

        value = cast(sf.lit(text), item.type, Spelling()).value
        self._literals.append((f"{item.rule.place}.{key}", text, value))
        return value

    def _check_literals(self, frame: DataFrame) -> None:
        """Evaluate what the rules compare with, and compile their patterns, before a row is read."""
        spark = frame.sparkSession
        problems = []
        if self._literals:
            missing = [value.isNull().alias(f"l{number}") for number, (_, _, value) in enumerate(self._literals)]
            found = spark.sql("VALUES 0").select(*missing).collect()[0]  # which Spark folds without a job
            for (place, text, _), none in zip(self._literals, found, strict=True):
                problems += [f"{place}: {text!r} is no value of the column's type"] if none else []
        for item in self.mapped.fillings:
            said = _pattern_problem(spark, item.rule.pattern) if item.rule.pattern is not None else None
            problems += [f"{item.rule.place}.pattern: {said}"] if said else []
        if problems:
            raise ConfigError(dict.fromkeys(problems))

    def _order(self, part: Part) -> list[Column]:
        """What decides between rows of a key, where it is a column of the source."""
        from pyspark.sql import functions as sf

        names = {item.name for item in self.mapped.fillings}
        found = []
        for number, order in enumerate(self.rules.duplicates):
            if order.column in names:
                continue
            places = {n: position(i) for i, n in enumerate(part.layout.columns)}
            places = places | {name: at for name, at in (("file", FILE), ("line", LINE)) if name not in places}
            if order.column not in places:
                known = ", ".join(dict.fromkeys([*(item.name for item in self.mapped.fillings), *places]))
                raise ConfigError(
                    f"{order.place}: {part.layout.label} has no column {order.column!r}; known are {known}"
                )
            found.append(sf.col(places[order.column]).alias(f"{ORDER}{number}"))
        return found

    def _across(self, frame: DataFrame) -> DataFrame:
        """Rules that are about several columns, or about other directories."""
        from pyspark.sql import functions as sf

        for check in self.rules.checks:
            reason = Reason(column="", rule="check", text=f"does not satisfy: {check.name}")
            frame = self._rejecting(frame, reason, ~_expression(frame, check.expression, check.place))
        for item in self.mapped.fillings:
            reference = item.rule.reference
            if reference is None:
                continue
            reason = Reason(column=item.name, rule="reference", text=f"is not in directory {reference.directory}")
            known = self.references[item.name].select(sf.col("value").alias("_known"))
            value = sf.col(quoted(item.name)).cast("string")
            frame = frame.join(known, value == sf.col("_known"), "left")
            frame = self._rejecting(frame, reason, value.isNotNull() & sf.col("_known").isNull()).drop("_known")
        return frame

    def _rejecting(self, frame: DataFrame, reason: Reason, condition: Column) -> DataFrame:
        from pyspark.sql import functions as sf

        more = sf.array_append(sf.coalesce(REASONS, sf.array().cast("array<int>")), self.number(reason))
        return frame.withColumn(REASONS, sf.when(condition, more).otherwise(sf.col(REASONS)))


def _less(item: Filling, one: Column, other: Column) -> Column:
    """Compared as numbers also where Spark holds them as texts, of which ``99`` is the greater one beside ``100``."""
    from pyspark.sql import functions as sf

    if item.type.name != "numeric" or item.type.spark != "string":
        return one < other
    exact = one.try_cast("decimal(38,9)") < other.try_cast("decimal(38,9)")
    return sf.when(exact, True).otherwise(one.try_cast("double") < other.try_cast("double"))


def _text(item: Filling) -> str:
    return f"_text {item.name}"


def _column(name: str) -> Column:
    from pyspark.sql import functions as sf

    return sf.col(quoted(name))


def _named(part: Part) -> DataFrame:
    """The part's frame with the source's own names beside the positions, for expressions; ambiguous ones only fail
    where they are used.
    """
    from pyspark.sql import functions as sf

    names = [sf.col(position(number)).alias(name) for number, name in enumerate(part.layout.columns) if name]
    return part.frame.select("*", *names)


def _given(named: DataFrame, item: Filling, place: int | None) -> Column:
    from pyspark.sql import functions as sf

    if item.rule.expression is not None:
        value = _expression(named, item.rule.expression, f"{item.rule.place}.expression")
    else:
        value = sf.col(position(place or 0))
    return as_text(value, named.select(value).schema[0].dataType, item.type)


def _expression(frame: DataFrame, text: str, place: str) -> Column:
    """A Spark SQL expression. Raises ConfigError where Spark does not understand it on this frame."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sf

    try:
        value = sf.expr(text)
        frame.select(value)
    except PySparkException as error:
        said = str(error).partition("\n")[0].partition(" SQLSTATE")[0]
        raise ConfigError(f"{place}: {said}") from None
    return value


def _pattern_problem(spark: SparkSession, pattern: str) -> str | None:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        spark._jvm.java.util.regex.Pattern.compile(pattern)  # type: ignore[union-attr]  # noqa: SLF001
    except (Py4JJavaError, PySparkException) as error:
        return f"not a regular expression: {str(error).partition(chr(10))[0]}"
    return None
