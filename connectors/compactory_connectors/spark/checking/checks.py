"""Records → rows of the target, rejected ones with all their reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType

from compactory.errors import ConfigError

from ..identifier import literal, quoted
from ..rules.mapping import Filling, Mapped
from ..rules.rules import Rules
from ..sources.parts import FAULT, FAULTS, FILE, LINE, PLACE, RAW, Part, position
from ..target import REJECTED
from .casting import Spelling, as_text, cast

__all__ = ["ORDER", "REASONS", "Checks", "Reason"]

REASONS: Final = "_reasons"
"""Column of the reasons of a rejected row, as indexes of :attr:`Checks.reasons`; null in other rows."""
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


@dataclass(slots=True)
class _Checked:
    """The checks of a column or a row, in Spark's SQL: ``broken`` for each row, ``reasons`` only for broken ones."""

    broken: list[str] = field(default_factory=list)
    reasons: list[tuple[Reason, str]] = field(default_factory=list)
    literals: dict[str, str] = field(default_factory=dict)
    """Literals that the rules compare with, by the complaint where one is no value of its column."""

    def reject(self, reason: Reason, condition: str) -> None:
        self.broken.append(condition)
        self.reasons.append((reason, condition))

    def constant(self, item: Filling, key: str, text: str) -> str:
        """A text of the rules as a value of the column: dates and numbers there are spelt as in Postgres."""
        value = cast(literal(text), item.type, Spelling()).value
        self.literals[f"{item.rule.place}.{key}: {text!r} is no value of the column's type"] = value
        return value


@dataclass(kw_only=True)
class Checks:
    """Checks the parts of one source. Belongs to one thread."""

    mapped: Mapped
    rules: Rules
    parts: Sequence[Part]
    references: Mapping[str, DataFrame] = field(default_factory=dict)
    """By column: frames of one column ``value`` of text, each value once, that its reference allows."""
    reasons: list[Reason] = field(default_factory=list)

    def prepare(self) -> None:
        """Check the rules before a row is read.

        Raises ConfigError with every expression, condition, pattern, format, bound and order that can't be used.
        """
        problems: list[str] = []

        def collect(check: Callable[[], object]) -> bool:
            try:
                check()
            except ConfigError as error:
                problems.extend(error.problems)
                return False
            return True

        collect(partial(self._check_rules, self.parts[0].frame.sparkSession))
        for part in self.parts:
            frame, types = self._named(part), {column.name: column.dataType for column in part.frame.schema}
            are_ordered = collect(partial(self._order, part))
            are_texts = [collect(partial(self._text, frame, part, types, item)) for item in self.mapped.fillings]
            if are_ordered and all(are_texts):
                valued = self._valued(part)
                for check in self.rules.checks:  # a type other than a condition's is refused here
                    collect(partial(_type_of, valued, f"NOT ({check.expression}\n)", check.place))
        if problems:
            raise ConfigError(dict.fromkeys(problems))

    @cached_property
    def marked(self) -> DataFrame:
        """All rows: the target's columns, and whether the row is rejected, in :data:`REJECTED`."""
        rejected = f"{self._is_broken} IS TRUE AS {REJECTED}"
        frames = [frame.selectExpr(*map(quoted, self.names), rejected) for frame in self._values]
        return self._referring(reduce(DataFrame.unionByName, frames), REJECTED, lambda _: "true")

    @cached_property
    def rows(self) -> DataFrame:
        """All rows: the target's columns, the places of :mod:`parts`, and :data:`REASONS`.

        Spark plans them, and compiles their plan, for much longer than :attr:`marked`.
        """
        numbers = ", ".join(f"if({when}, {self.number(reason)}, NULL)" for reason, when in self._checked.reasons)
        faults = " ".join(
            f"WHEN '{code}' THEN array({self.number(Reason(column='', rule='record', text=text))})"
            for code, text in FAULTS.items()
        )
        reasons = f"CASE split_part({FAULT}, ':', 1) {faults} ELSE array_compact(array({numbers})) END"
        wrong = f"CASE WHEN {self._is_broken} THEN {reasons} END AS {REASONS}"
        frames = [
            frame.selectExpr(*map(quoted, self.names), *PLACE, RAW, FAULT, *self._order(part), wrong)
            for part, frame in zip(self.parts, self._values, strict=True)
        ]
        return self._referring(reduce(DataFrame.unionByName, frames), REASONS, self._one_more)

    @property
    def good(self) -> DataFrame:
        return self.rows.where(f"{REASONS} IS NULL")

    @property
    def bad(self) -> DataFrame:
        return self.rows.where(f"{REASONS} IS NOT NULL")

    def rejecting(self, rows: DataFrame, reason: Reason) -> DataFrame:
        columns = [quoted(name) for name in rows.columns if name != REASONS]
        return rows.selectExpr(*columns, f"array({self.number(reason)}) AS {REASONS}")

    @property
    def names(self) -> list[str]:
        return [item.name for item in self.mapped.fillings]

    def number(self, reason: Reason) -> int:
        """The number of a reason, the same one each time."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason)

    @cached_property
    def _checked(self) -> _Checked:
        checked = _Checked(broken=[f"{FAULT} IS NOT NULL"])
        for item in self.mapped.fillings:
            self._check(item, checked)
        for check in self.rules.checks:
            reason = Reason(column="", rule="check", text=f"does not satisfy: {check.name}")
            checked.reject(reason, f"NOT ({check.expression}\n)")
        return checked

    @property
    def _is_broken(self) -> str:
        return f"({' OR '.join(f'({condition})' for condition in self._checked.broken)})"

    @cached_property
    def _values(self) -> list[DataFrame]:
        """For each part the columns of the target, with the texts that they are made of."""
        return [self._valued(part) for part in self.parts]

    def _named(self, part: Part) -> DataFrame:
        """Return the part with its columns under their own names too where expressions need them."""
        if all(item.rule.expression is None for item in self.mapped.fillings):
            return part.frame
        names = [f"{position(at)} AS {quoted(name)}" for at, name in enumerate(part.layout.columns) if name]
        return part.frame.selectExpr("*", *names)  # ambiguous ones only fail where they are used

    def _valued(self, part: Part) -> DataFrame:
        frame = self._named(part)
        types = {column.name: column.dataType for column in part.frame.schema}
        texts = [self._text(frame, part, types, item) for item in self.mapped.fillings]
        values = [
            f"{cast(_text_column(item), item.type, self._spelling(item)).value} AS {quoted(item.name)}"
            for item in self.mapped.fillings
        ]
        return frame.selectExpr(*texts, *PLACE, RAW, FAULT, *self._order(part).values()).selectExpr("*", *values)

    def _text(self, frame: DataFrame, part: Part, types: Mapping[str, DataType], item: Filling) -> str:
        """The value for a column, as text: trimmed, without the texts that stand for null."""
        rule, place = item.rule, self.mapped.places[part.layout.label].get(item.name)
        if rule.value is not None:
            value = literal(rule.value)
        elif rule.expression is not None:
            data_type = _type_of(frame, rule.expression, f"{rule.place}.expression")
            value = as_text(f"({rule.expression}\n)", data_type, item.type)
        elif place is not None:
            value = as_text(position(place), types[position(place)], item.type)
        else:
            value = "string(NULL)"
        value = f"trim({value})" if rule.trim else value
        nulls = dict.fromkeys([*rule.nulls, *self.rules.read.nulls])
        if nulls:
            value = f"if({value} IN ({', '.join(map(literal, nulls))}), NULL, {value})"
        if item.type.name in _HELD_AS_TEXT or (item.type.name not in _BLANK_IS_TEXT and item.type.spark != "string"):
            value = f"if(trim({value}) = '', NULL, {value})"
        value = f"coalesce({value}, {literal(rule.default)})" if rule.default is not None else value
        return f"{value} AS {_text_column(item)}"

    def _check(self, item: Filling, checked: _Checked) -> None:
        """Add the checks of a column."""
        text, rule, value = _text_column(item), item.rule, quoted(item.name)

        def reason(kind: str, why: str) -> Reason:
            return Reason(column=item.name, rule=kind, text=why)

        if item.required:
            checked.broken.append(f"{value} IS NULL")
            checked.reasons.append((reason("required", "is missing"), f"{text} IS NULL"))
        else:
            checked.broken.append(f"{text} IS NOT NULL AND {value} IS NULL")
        none = f"{text} IS NOT NULL AND {value} IS NULL"
        for problem in cast(text, item.type, self._spelling(item)).problems:
            checked.reasons.append((reason("type", problem.text), f"{none} AND ({problem.condition})"))
        if rule.type is not None and rule.type != item.type:
            also = cast(text, rule.type, self._spelling(item))
            checked.broken.append(f"{text} IS NOT NULL AND {also.value} IS NULL")
            for problem in also.problems:
                checked.reasons.append((reason("type", problem.text), f"{text} IS NOT NULL AND ({problem.condition})"))
        if rule.pattern is not None:
            whole = literal(rf"\A(?:{rule.pattern})\z")
            checked.reject(reason("pattern", f"does not match {rule.pattern}"), f"NOT {text} RLIKE {whole}")
        if rule.minimum is not None:
            less = _less(item, value, checked.constant(item, "min", rule.minimum))
            checked.reject(reason("range", f"is less than {rule.minimum}"), less)
        if rule.maximum is not None:
            greater = _less(item, checked.constant(item, "max", rule.maximum), value)
            checked.reject(reason("range", f"is greater than {rule.maximum}"), greater)
        if rule.allowed is not None:
            allowed = ", ".join(checked.constant(item, "allowed", choice) for choice in rule.allowed) or "NULL"
            checked.reject(reason("allowed", "is not one of the allowed values"), f"{value} NOT IN ({allowed})")

    def _spelling(self, item: Filling) -> Spelling:
        read, rule = self.rules.read, item.rule
        zone = rule.time_zone or read.time_zone
        return Spelling(format=rule.format, decimal=rule.decimal or read.decimal, time_zone=zone)

    def _check_rules(self, spark: SparkSession) -> None:
        """Evaluate the values that the rules compare with, and compile their patterns, before a row is read."""
        problems: list[str] = []
        literals = self._checked.literals
        if literals:
            missing = [f"({value}) IS NULL" for value in literals.values()]
            results = spark.sql("VALUES 0").selectExpr(*missing).collect()[0]  # which Spark folds without a job
            problems += [problem for problem, none in zip(literals, results, strict=True) if none]
        for item in self.mapped.fillings:
            problem_text = _pattern_problem(spark, item.rule.pattern) if item.rule.pattern is not None else None
            problems += [f"{item.rule.place}.pattern: {problem_text}"] if problem_text else []
            if item.rule.format is not None and not _is_format(
                spark, cast("'x'", item.type, self._spelling(item)).value
            ):
                problems.append(
                    f"{item.rule.place}.format: {item.rule.format!r} is no pattern of Spark's for dates and times;"
                    " those are like dd.MM.yyyy HH:mm"
                )
        if problems:
            raise ConfigError(problems)

    def _order(self, part: Part) -> dict[str, str]:
        """The source's columns that decide between rows of a key, by the names that they get."""
        places = {"file": FILE, "line": LINE} | {name: position(at) for at, name in enumerate(part.layout.columns)}
        columns = {}
        for number, order in enumerate(self.rules.duplicates):
            if order.column in self.names:
                continue
            if order.column not in places:
                existing = ", ".join(dict.fromkeys([*self.names, *places]))
                raise ConfigError(f"duplicates: {part.layout.label} has no column {order.column!r}; it has {existing}")
            columns[f"{ORDER}{number}"] = f"{places[order.column]} AS {ORDER}{number}"
        return columns

    def _referring(self, frame: DataFrame, verdict: str, rejected: Callable[[Filling], str]) -> DataFrame:
        """Rules that are about other directories; the column ``verdict`` says what is wrong with a row."""
        columns = [quoted(name) for name in frame.columns if name != verdict]
        for item in self.mapped.fillings:
            if item.rule.reference is None:
                continue
            allowed = self.references[item.name].selectExpr("value AS _known")
            value = f"string({quoted(item.name)})"
            wrong = f"if({value} IS NOT NULL AND _known IS NULL, {rejected(item)}, {verdict}) AS {verdict}"
            frame = frame.join(allowed, sf.expr(f"{value} = _known"), "left").selectExpr(*columns, wrong)
        return frame

    def _one_more(self, item: Filling) -> str:
        """The reasons of a row, and that the column refers to nothing."""
        assert item.rule.reference is not None
        why = f"is not in directory {item.rule.reference.directory}"
        number = self.number(Reason(column=item.name, rule="reference", text=why))
        return f"array_append(coalesce({REASONS}, CAST(array() AS array<int>)), {number})"


def _less(item: Filling, smaller: str, greater: str) -> str:
    """Compared as numbers also where Spark holds them as texts, of which ``99`` is the greater one beside ``100``."""
    if item.type.name != "numeric" or item.type.spark != "string":
        return f"{smaller} < {greater}"
    exact, near = (
        f"try_cast({smaller} AS {kind}) < try_cast({greater} AS {kind})" for kind in ("decimal(38,9)", "double")
    )
    return f"({exact} IS TRUE OR {near})"


def _text_column(item: Filling) -> str:
    return quoted(f"_text {item.name}")


def _type_of(frame: DataFrame, text: str, place: str) -> DataType:
    """The type of an expression. Raises ConfigError where Spark does not understand it on this frame."""
    try:
        return frame.selectExpr("*", text).schema[-1].dataType  # beside columns an aggregate is refused
    except PySparkException as error:
        message = str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]
        raise ConfigError(f"{place}: {message}") from None


def _is_format(spark: SparkSession, value: str) -> bool:
    """Return True if Spark understands the pattern in the expression of a value."""
    try:
        spark.sql("VALUES 0").selectExpr(value).collect()
    except PySparkException:
        return False
    return True


def _pattern_problem(spark: SparkSession, pattern: str) -> str | None:
    try:
        spark.sql("VALUES 0").selectExpr(f"'' RLIKE {literal(pattern)}").collect()
    except PySparkException:
        return f"{pattern!r} is not a regular expression of Java"
    return None
