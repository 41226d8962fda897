"""A load: a source read, checked, compared with its target, and written, or refused before anything is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from compactory.errors import CompactoryError

from .checking.checks import Checks, Reason
from .checking.counted import Counted, count
from .checking.duplicates import resolve
from .checking.rejects import check_folder, refuse_source, rejected, some, write
from .identifier import quoted
from .report import LoadReport, Outcome
from .rules.limit import SHARE_OF_KEYS, Limit
from .rules.mapping import Layout, Mapped, map_columns
from .rules.rules import FileFormat, Reference, Rules
from .sources.parts import Part, numbered
from .sources.reading import read_files, read_frame, read_table
from .sources.source_files import format_of, list_files
from .stages import Stages
from .target import REJECTED, Change, Mode, Target, TargetColumn

__all__ = ["Load", "Plan"]

_SHOWN: Final = 5
"""Rejects that a report has as examples."""
_PARTITIONS: Final = "32"
_FILE_PARTITIONS: Final = "spark.sql.files.minPartitionNum"
"""Spark's property for the number of tasks among which it divides files; unset, it follows the cores of the moment."""
_TWICE: Final = "is there more than once with different values, and no order in the rules says which row counts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The order for a load."""

    sources: Sequence[str]
    """Files, globs, folders; or a JDBC URL; or a name for ``frame``."""
    frame: DataFrame | None = None
    """Rows to load in place of sources."""
    table: str | None = None
    """The table behind the URL."""
    jdbc: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further options of Spark's JDBC reader; may hold credentials."""
    format: FileFormat | None = None
    rules: Rules = field(default_factory=Rules)
    references: Callable[[SparkSession, str, Reference], DataFrame] | None = None
    """(session, column that refers, reference) → frame of one column ``value`` of text, each once."""
    whole: bool = False
    """Every column of the target has to be filled."""
    mode: Mode = Mode.UPSERT
    dry_run: bool = False
    rejects: str | None = None
    """A folder for rejected rows."""
    max_rejects: Limit | None = None
    """None: none where no folder keeps them, else as many as there are."""
    max_deactivate: Limit = SHARE_OF_KEYS


class Load:
    """One load into one target. Belongs to one thread; :meth:`run` once."""

    def __init__(
        self, spark: SparkSession, target: Target, plan: Plan, report: LoadReport, stages: Stages | None = None
    ) -> None:
        self._spark = spark
        self._target = target
        self._plan = plan
        self._report = report
        self._stages = stages or Stages()
        self._kept = ExitStack()

    def run(self) -> None:
        """Load, and fill the report while it goes on; whether a limit refused it is in the report.

        Raises ConfigError before anything is read, Unreachable, and what the target raises; readers of the target have
        seen nothing then.
        """
        self._fix_file_partitions()
        with self._kept:
            checks = self._prepared()
            if checks is not None:
                self._run(checks)

    def _fix_file_partitions(self) -> None:
        """Divide files alike in all jobs of the load: lines are counted in one job and numbered in another one.

        Between two jobs a cluster may gain or lose executors, and Spark would divide files anew.
        """
        if self._spark.conf.get(_FILE_PARTITIONS, None) is None:
            self._spark.conf.set(_FILE_PARTITIONS, _PARTITIONS)

    def _prepared(self) -> Checks | None:
        """The rows and what is asked of them, before any is read; None where the load was done before."""
        plan = self._plan
        with self._stage("preparing", None):
            done = None if plan.dry_run else self._target.repeated()
            if done is not None:
                self._report.changes, self._report.outcome = done.counts, Outcome.REPEATED
                return None
            if plan.rejects is not None:
                check_folder(self._spark, plan.rejects)
            columns = self._target.columns
            parts = self._parts(columns)
            mapped = self._mapped([part.layout for part in parts], columns)
            if any(order.column == "line" for order in plan.rules.duplicates):
                parts = [replace(part, frame=numbered(part.frame, [part])) for part in parts]
            checks = Checks(mapped=mapped, rules=plan.rules, parts=parts, references=self._references())
            checks.prepare()
            return checks

    def _run(self, checks: Checks) -> None:
        report = self._report
        with self._stage("checking", None):
            good, bad = self._received(checks) or self._resolved(checks)
        with self._stage("rejects", report.rejected):
            refused = self._rejects(checks, bad)
        if refused:
            self._refuse(f"{report.rejected:,} of {report.read:,} rows are rejected, and {refused}")
            if not self._plan.dry_run:
                return
        rows = good.select(*map(quoted, checks.names))
        spared = bad.select(*map(quoted, checks.mapped.keys)).dropna() if bad is not None else None
        with self._stage("comparing", report.accepted):
            differences = self._target.compare(rows, self._plan.mode, spared)
        report.changes, report.samples, report.present = differences.counts, differences.samples, differences.present
        if refusal := differences.refusal(self._plan.max_deactivate, "--max-deactivate"):
            self._refuse(refusal)
        if report.outcome is Outcome.REFUSED:
            return
        if self._plan.dry_run:
            report.outcome = Outcome.DRY_RUN
        else:
            self._write()

    def _received(self, checks: Checks) -> tuple[DataFrame, DataFrame | None] | None:
        """Rows that the target has received while they were checked, and the rejected rows, None if there are none.

        None: it has not, or found several rows of a key or one that it does not take, so that the source is read again
        to decide between them, and rejects are kept before the load fails.
        """
        received = self._target.receive(checks.marked, self._plan.mode)
        if received is None:
            return None
        bad = self._keep(checks.bad) if received.rejected else None
        self._count(count(checks, bad, received))
        if self._report.rejected != received.rejected:
            raise CompactoryError("the source has changed while it was read; nothing was changed: load again")
        return checks.marked.where(f"NOT {REJECTED}"), bad

    def _resolved(self, checks: Checks) -> tuple[DataFrame, DataFrame | None]:
        """Rows that have each key once, and the rejected rows, None if there are none. Keeps the rows that it reads."""
        self._count(count(checks, self._keep(checks.rows)))
        keys = checks.mapped.keys
        resolved = resolve(checks.good, checks.names, keys, self._plan.rules.duplicates, self._keep)
        report = self._report
        bad = checks.bad if report.rejected else None
        if resolved is None:
            return checks.good, bad
        report.accepted += resolved.loaded - resolved.repeated
        report.duplicates = resolved.repeated - resolved.loaded - resolved.rejected
        if not resolved.rejected:
            return resolved.rows, bad
        reason = Reason(column=", ".join(keys), rule="unique", text=_TWICE)
        report.rejected += resolved.rejected
        report.reasons = {**report.reasons, reason: resolved.rejected}
        return resolved.rows, checks.bad.unionByName(checks.rejecting(resolved.undecided, reason))

    def _write(self) -> None:
        changed = sum(count for change, count in self._report.changes.items() if change is not Change.UNCHANGED)
        with self._stage("writing", changed):
            written = self._target.write()
        self._report.changes = written.counts
        self._report.outcome = Outcome.REPEATED if written.repeated else Outcome.DONE

    def _refuse(self, why: str) -> None:
        before = f"{self._report.why}; " if self._report.why else ""
        self._report.outcome, self._report.why = Outcome.REFUSED, before + why

    # Reading.

    def _parts(self, columns: Sequence[TargetColumn]) -> list[Part]:
        plan = self._plan
        if plan.frame is not None:
            part = read_frame(plan.frame, plan.sources[0])
            return [replace(part, frame=self._keep(part.frame))]
        if plan.table is not None:
            part = read_table(self._spark, plan.sources[0], plan.table, plan.jdbc)
            return [replace(part, frame=self._keep(part.frame))]  # others change a table between two looks at it
        files = list_files(self._spark, plan.sources)
        self._report.files = len(files)
        if plan.rejects is not None:
            refuse_source(self._spark, plan.rejects, files)
        kind = format_of(files, plan.format or plan.rules.read.format)
        return read_files(self._spark, files, kind, plan.rules.read, self._fields(columns))

    def _fields(self, columns: Sequence[TargetColumn]) -> list[str]:
        """The fields of JSON objects that may be of interest."""
        rules = self._plan.rules
        named = {name: rule.source or name for name, rule in rules.columns.items()}
        found = [named.get(column.name, column.name) for column in columns]
        found += [order.column for order in rules.duplicates if order.column not in {"file", "line"}]
        return list(dict.fromkeys(name for name in found if name not in rules.ignore))

    def _mapped(self, layouts: Sequence[Layout], columns: Sequence[TargetColumn]) -> Mapped:
        target, plan = self._target, self._plan
        self._report.target = target.label
        mapped = map_columns(layouts, columns, target.key, plan.rules, whole=plan.whole)
        if mapped.unused:
            self._report.notes.append(f"not loaded, because the target has no such column: {', '.join(mapped.unused)}")
        return mapped

    def _references(self) -> dict[str, DataFrame]:
        look_up = self._plan.references
        if look_up is None:
            return {}
        rules = self._plan.rules.columns.items()
        return {
            name: self._keep(look_up(self._spark, name, rule.reference))
            for name, rule in rules
            if rule.reference is not None
        }

    # Counting.

    def _count(self, counted: Counted) -> None:
        report = self._report
        report.read, report.rejected, report.reasons = counted.read, counted.rejected, counted.reasons
        report.accepted = counted.read - counted.rejected

    def _rejects(self, checks: Checks, bad: DataFrame | None) -> str | None:
        """Keep the rejects; says why the load can't go on with so many of them."""
        report, plan = self._report, self._plan
        if bad is None and plan.rejects is None:
            return None
        located = numbered(bad, checks.parts) if bad is not None else checks.rows.where("false")
        found = rejected(located, checks.names, checks.reasons)
        if plan.rejects is not None:
            write(found, plan.rejects, report.rejected)
            report.rejects_folder = plan.rejects
        if report.rejected:
            report.rejects = some(found, _SHOWN)
        if plan.max_rejects is not None and not plan.max_rejects.allows(report.rejected, report.read):
            return f"--max-rejects allows {plan.max_rejects}"
        if plan.max_rejects is None and plan.rejects is None:
            return "nothing would keep them: give --rejects DIR to load the others, or --max-rejects N"
        return None

    def _keep(self, frame: DataFrame) -> DataFrame:
        """Have a frame computed once, until the load is over."""
        self._kept.callback(frame.unpersist)
        return frame.persist()

    @contextmanager
    def _stage(self, name: str, rows: int | None) -> Iterator[None]:
        started = time.monotonic()
        self._stages.begin(name, rows)
        try:
            yield
        finally:
            self._report.seconds[name] = time.monotonic() - started
            self._stages.end()
