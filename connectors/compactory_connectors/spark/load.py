"""A load: a source read, checked, compared with its target, and written, or refused before anything is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from compactory.errors import ConfigError

from .checks import REASONS, Checks, Reason
from .duplicates import Resolved, resolve
from .limit import Limit
from .mapping import Filling, Layout, Mapped, map_columns
from .parts import Part
from .reading import read_files, read_table
from .rejects import check_folder, refuse_source, rejected, some, write
from .report import LoadReport, Outcome
from .rules import FileFormat, Reference, Rules
from .source_files import format_of, list_files
from .target import Change, Mode, Target, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Load", "Plan", "Stages"]

_SHOWN: Final = 5
"""Rejects that a report has as examples."""
_SHARE: Final = Limit(percent=20)
"""Of a directory's keys, more are not removed unless somebody says so."""
_TWICE: Final = "is there more than once with different values, and no order in the rules says which row counts"


class Stages(Protocol):
    """Is told what a load is at."""

    def begin(self, stage: str, rows: int | None) -> None:
        """A stage begins; ``rows`` is how many it will handle, None where nobody knows yet."""
        ...

    def end(self) -> None:
        """The stage is over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a load is to do."""

    sources: Sequence[str]
    """Files, globs, folders; or a JDBC URL."""
    table: str | None = None
    """The table behind the URL."""
    jdbc: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further options of Spark's JDBC reader; may hold credentials."""
    format: FileFormat | None = None
    rules: Rules = field(default_factory=Rules)
    references: Callable[[str, Reference], DataFrame] | None = None
    """(column that refers, reference) → frame of one column ``value`` of text, each once."""
    whole: bool = False
    """Every column of the target has to be filled."""
    repeated: Callable[[], Written | None] | None = None
    """Says what this load has done where it was done before."""
    mode: Mode = Mode.UPSERT
    dry_run: bool = False
    rejects: str | None = None
    """A folder for rejected rows."""
    max_rejects: Limit | None = None
    """None: none where no folder keeps them, else as many as there are."""
    max_deactivate: Limit = _SHARE


class Load:
    """One load into one target. Belongs to one thread; :meth:`run` once."""

    def __init__(self, spark: SparkSession, target: Target, plan: Plan, report: LoadReport, stages: Stages) -> None:
        self._spark = spark
        self._target = target
        self._plan = plan
        self._report = report
        self._stages = stages

    def run(self) -> None:
        """Load, and fill the report while it goes on; whether a limit refused it is in the report.

        Raises ConfigError before anything is read, Unreachable, and what the target raises; readers of the target have
        seen nothing then.
        """
        with self._stage("preparing", None):
            done = self._plan.repeated() if self._plan.repeated is not None else None
            if done is not None:
                self._report.changes, self._report.outcome = done.counts, Outcome.REPEATED
                return
            if self._plan.rejects is not None:
                check_folder(self._spark, self._plan.rejects)
            parts = self._parts()
            mapped = self._mapped([part.layout for part in parts])
            checks = Checks(mapped=mapped, rules=self._plan.rules, references=self._references())
            frame = checks.frame(parts).persist()
        try:
            self._run(frame, checks, mapped, parts)
        finally:
            frame.unpersist()

    def _run(self, frame: DataFrame, checks: Checks, mapped: Mapped, parts: Sequence[Part]) -> None:
        report, names = self._report, [item.name for item in mapped.fillings]
        with self._stage("checking", None):
            self._count(frame, checks, self._fields_of(mapped, parts))
            valid = frame.where(f"{REASONS} IS NULL")
            resolved = resolve(valid, names, mapped.keys, self._plan.rules.duplicates)
            self._count_duplicates(resolved, mapped, checks)
        with self._stage("rejects", report.rejected):
            refused = self._rejects(frame, resolved, checks, names)
        if refused:
            self._refuse(f"{report.rejected:,} of {report.read:,} rows are rejected, and {refused}")
            if not self._plan.dry_run:
                return
        spared = self._spared(frame, resolved, mapped.keys) if report.rejected else None
        rows = resolved.rows.select(*map(_quoted, names))
        with self._stage("comparing", report.accepted):
            differences = self._target.compare(rows, self._plan.mode, spared)
        report.changes, report.samples, report.present = differences.counts, differences.samples, differences.present
        leaving = differences.counts.get(Change.DEACTIVATE, 0)
        if not self._plan.max_deactivate.allows(leaving, differences.present):
            self._refuse(
                f"{leaving:,} of {differences.present:,} keys are missing from the source, and --max-deactivate allows"
                f" {self._plan.max_deactivate}: look whether the source is whole, or allow more"
            )
        if report.outcome is Outcome.REFUSED:
            return
        if self._plan.dry_run:
            report.outcome = Outcome.DRY_RUN
        else:
            self._write()

    def _write(self) -> None:
        changed = sum(count for change, count in self._report.changes.items() if change is not Change.UNCHANGED)
        with self._stage("writing", changed):
            written = self._target.write()
        self._report.changes = written.counts
        self._report.outcome = Outcome.REPEATED if written.repeated else Outcome.DONE

    def _refuse(self, why: str) -> None:
        before = f"{self._report.why}; " if self._report.why else ""
        self._report.outcome, self._report.why = Outcome.REFUSED, before + why

    # What is read.

    def _parts(self) -> list[Part]:
        plan = self._plan
        if plan.table is not None:
            return [read_table(self._spark, plan.sources[0], plan.table, plan.jdbc)]
        files = list_files(self._spark, plan.sources)
        self._report.files = len(files)
        if plan.rejects is not None:
            refuse_source(self._spark, plan.rejects, files)
        kind = format_of(files, plan.format or plan.rules.read.format)
        return read_files(self._spark, files, kind, plan.rules.read, self._fields())

    def _fields(self) -> list[str]:
        """The fields of JSON objects that may be of interest."""
        rules = self._plan.rules
        named = {name: rule.source or name for name, rule in rules.columns.items()}
        found = [named.get(column.name, column.name) for column in self._target.columns]
        found += [order.column for order in rules.duplicates if order.column not in {"file", "line"}]
        return list(dict.fromkeys(name for name in found if name not in rules.ignore))

    @staticmethod
    def _fields_of(mapped: Mapped, parts: Sequence[Part]) -> list[Filling]:
        """What fields of records fill that need not have them."""
        if all(part.layout.declared for part in parts):
            return []
        return [item for item in mapped.fillings if item.source is not None and not item.rule.optional]

    def _mapped(self, layouts: Sequence[Layout]) -> Mapped:
        target, plan = self._target, self._plan
        columns = target.columns
        self._report.target = target.label
        mapped = map_columns(layouts, columns, target.key, plan.rules, whole=plan.whole)
        if mapped.unused:
            self._report.notes.append(f"not loaded, because the target has no such column: {', '.join(mapped.unused)}")
        return mapped

    def _references(self) -> dict[str, DataFrame]:
        look_up = self._plan.references
        if look_up is None:
            return {}
        rules = self._plan.rules.columns.values()
        return {rule.name: look_up(rule.name, rule.reference) for rule in rules if rule.reference is not None}

    # What is counted.

    def _count(self, frame: DataFrame, checks: Checks, fields: Sequence[Filling]) -> None:
        """Read the source once, and count rows by what is wrong with them; and how many have each of ``fields``.

        Raises ConfigError for a field that no record has: a misspelt one would make every value of its column null.
        """
        from pyspark.sql import functions as sf

        counted: dict[Reason, int] = {}
        filled, objects = dict.fromkeys(fields, 0), 0
        counts = [sf.count(_quoted(item.name)).alias(f"filled{number}") for number, item in enumerate(fields)]
        for row in frame.groupBy(REASONS).agg(sf.count("*").alias("rows"), *counts).collect():
            self._report.read += row["rows"]
            numbers = row[REASONS] or ()
            self._report.rejected += row["rows"] if numbers else 0
            objects += row["rows"] if all(checks.reasons[number].rule != "record" for number in numbers) else 0
            for number in numbers:
                reason = checks.reasons[number]
                counted[reason] = counted.get(reason, 0) + row["rows"]
            for number, item in enumerate(fields):
                refused = any(checks.reasons[each].rejects_a_value_of(item.name) for each in numbers)
                filled[item] += row[f"filled{number}"] + refused
        self._report.reasons = dict(sorted(counted.items(), key=lambda item: -item[1]))
        nowhere = [item.source for item, count in filled.items() if not count and objects]
        if nowhere:
            raise ConfigError(
                f"no record has a field {name!r}: say by `from` what fills the column, that it is `optional` (null),"
                " or to `ignore` it (left as it is)"
                for name in nowhere
            )

    def _count_duplicates(self, resolved: Resolved, mapped: Mapped, checks: Checks) -> None:
        report = self._report
        valid = report.read - report.rejected
        report.accepted = valid
        if resolved.undecided is None:
            return
        report.accepted = resolved.rows.persist().count()
        undecided = resolved.undecided.count()
        report.duplicates = valid - report.accepted - undecided
        if undecided:
            report.rejected += undecided
            reason = Reason(column=", ".join(mapped.keys), rule="unique", text=_TWICE)
            checks.number(reason)
            report.reasons = {**report.reasons, reason: undecided}

    def _rejects(self, frame: DataFrame, resolved: Resolved, checks: Checks, names: Sequence[str]) -> str | None:
        """Keep the rejects; says why the load can't go on with so many of them."""
        report, plan = self._report, self._plan
        found = rejected(self._rejected_rows(frame, resolved, checks), names, checks.reasons)
        if plan.rejects is not None:
            write(found, plan.rejects, report.rejected)
            report.rejects_folder = plan.rejects
        if report.rejected:
            report.rejects = some(found, _SHOWN)
        if plan.max_rejects is not None and not plan.max_rejects.allows(report.rejected, report.read):
            return f"--max-rejects allows {plan.max_rejects}"
        if plan.max_rejects is None and plan.rejects is None and report.rejected:
            return "nothing would keep them: give --rejects DIR to load the others, or --max-rejects N"
        return None

    def _rejected_rows(self, frame: DataFrame, resolved: Resolved, checks: Checks) -> DataFrame:
        from pyspark.sql import functions as sf

        bad = frame.where(f"{REASONS} IS NOT NULL")
        if resolved.undecided is None:
            return bad
        number = len(checks.reasons) - 1
        return bad.unionByName(resolved.undecided.withColumn(REASONS, sf.array(sf.lit(number))))

    def _spared(self, frame: DataFrame, resolved: Resolved, keys: Sequence[str]) -> DataFrame:
        """Keys of rejected rows, where they can be read."""
        bad = frame.where(f"{REASONS} IS NOT NULL").select(*map(_quoted, keys))
        if resolved.undecided is not None:
            bad = bad.unionByName(resolved.undecided.select(*map(_quoted, keys)))
        return bad.dropna()

    @contextmanager
    def _stage(self, name: str, rows: int | None) -> Iterator[None]:
        started = time.monotonic()
        self._stages.begin(name, rows)
        try:
            yield
        finally:
            self._report.seconds[name] = time.monotonic() - started
            self._stages.end()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
