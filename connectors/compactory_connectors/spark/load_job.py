"""A load: reads a source, checks its rows, compares them with the target, and writes the differences or refuses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from compactory.errors import CompactoryError

from .checking.checks import Checks, Reason
from .checking.duplicates import resolve
from .checking.rejects import Counted, check_folder, count, rejected, some, write
from .identifier import quoted
from .report import LoadReport, Outcome
from .rules.limit import SHARE_OF_KEYS, Limit, missing_keys_problem
from .rules.mapping import Layout, Mapped, map_columns
from .rules.rules import FileFormat, Reference, Rules
from .sources.parts import Part, numbered
from .sources.reading import read_files, read_frame
from .sources.source_files import format_of, list_files
from .target import REJECTED, Change, Mode, Target, TargetColumn

__all__ = ["Load", "Plan"]

log = logging.getLogger("compactory.spark")

_SHOWN: Final = 5
"""Examples of rejects in a report."""
_PARTITIONS: Final = "32"
_FILE_PARTITIONS: Final = "spark.sql.files.minPartitionNum"
"""Spark's property for the number of tasks among which it divides files; unset, it follows the cores of the moment."""
_TWICE: Final = "is there more than once with different values, and no order in the rules says which row counts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The source, the rules and the limits of a load."""

    sources: Sequence[str]
    """Files, globs, folders; or a name for ``frame``."""
    frame: DataFrame | None = None
    """Rows to load in place of sources."""
    format: FileFormat | None = None
    rules: Rules = field(default_factory=Rules)
    references: Callable[[SparkSession, str, Reference], DataFrame] | None = None
    """(session, column that refers, reference) → frame of one column ``value`` of text, each once."""
    whole: bool = False
    """True if each column of the target must be filled."""
    mode: Mode = Mode.UPSERT
    dry_run: bool = False
    rejects: str | None = None
    """A folder for rejected rows."""
    max_rejects: Limit | None = None
    """None: no limit with a folder for rejects, else no reject is allowed."""
    max_deactivate: Limit = SHARE_OF_KEYS


class Load:
    """A load into a target. Belongs to one thread; :meth:`run` is called once."""

    def __init__(self, spark: SparkSession, target: Target, plan: Plan, report: LoadReport) -> None:
        self._spark = spark
        self._target = target
        self._plan = plan
        self._report = report
        self._persisted = ExitStack()

    def run(self) -> None:
        """Load, and fill the report meanwhile. The report says whether a limit refused the load.

        Raises ConfigError before a row is read, Unreachable, and the errors of the target; readers of the target see no
        change then.
        """
        self._fix_file_partitions()
        with self._persisted:
            checks = self._prepared()
            if checks is not None:
                self._run(checks)

    def _fix_file_partitions(self) -> None:
        """Make all jobs of the load divide files alike: one job counts lines, and another numbers them.

        Between two jobs a cluster may gain or lose executors, and Spark would divide files anew.
        """
        if self._spark.conf.get(_FILE_PARTITIONS, None) is None:
            self._spark.conf.set(_FILE_PARTITIONS, _PARTITIONS)

    def _prepared(self) -> Checks | None:
        """Return the checks of the rows before a row is read; None if the load was done before."""
        plan = self._plan
        with self._stage("preparing", None):
            finished = None if plan.dry_run else self._target.repeated()
            if finished is not None:
                self._report.changes, self._report.outcome = finished.counts, Outcome.REPEATED
                return None
            columns = self._target.columns
            parts = self._parts()
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
        if refusal := missing_keys_problem(differences, self._plan.max_deactivate, "--max-deactivate"):
            self._refuse(refusal)
        if report.outcome is Outcome.REFUSED:
            return
        if self._plan.dry_run:
            report.outcome = Outcome.DRY_RUN
        else:
            self._write()

    def _received(self, checks: Checks) -> tuple[DataFrame, DataFrame | None] | None:
        """Return the rows that the target received while they were checked, and the rejected ones; None if none are.

        None: the target received none. It does not do so, or several rows have one key, or it can't take a row. The
        source is read again then, to decide between rows of a key, and to write rejects before the load fails.
        """
        received = self._target.receive(checks.marked, self._plan.mode)
        if received is None:
            return None
        bad = self._persist(checks.bad) if received.rejected else None
        self._count(count(checks, bad, received))
        if self._report.rejected != received.rejected:
            raise CompactoryError("the source has changed while it was read; nothing was changed: load again")
        return checks.marked.where(f"NOT {REJECTED}"), bad

    def _resolved(self, checks: Checks) -> tuple[DataFrame, DataFrame | None]:
        """Return rows with each key once, and the rejected rows; None if none are. Persists the rows that it reads."""
        self._count(count(checks, self._persist(checks.rows)))
        keys = checks.mapped.keys
        resolved = resolve(checks.good, checks.names, keys, self._plan.rules.duplicates, self._persist)
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

    def _refuse(self, reason: str) -> None:
        earlier = f"{self._report.why}; " if self._report.why else ""
        self._report.outcome, self._report.why = Outcome.REFUSED, earlier + reason

    # Reading.

    def _parts(self) -> list[Part]:
        plan = self._plan
        if plan.frame is not None:
            self._check_folder([])
            part = read_frame(plan.frame, plan.sources[0])
            return [replace(part, frame=self._persist(part.frame))]  # it may change between two reads
        files = list_files(self._spark, plan.sources)
        self._report.files = len(files)
        self._check_folder(files)
        kind = format_of(files, plan.format or plan.rules.read.format)
        return read_files(self._spark, files, kind, plan.rules.read)

    def _check_folder(self, files: Sequence[str]) -> None:
        if self._plan.rejects is not None:
            check_folder(self._spark, self._plan.rejects, files)

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
            name: self._persist(look_up(self._spark, name, rule.reference))
            for name, rule in rules
            if rule.reference is not None
        }

    # Counting.

    def _count(self, counted: Counted) -> None:
        report = self._report
        report.read, report.rejected, report.reasons = counted.read, counted.rejected, counted.reasons
        report.accepted = counted.read - counted.rejected

    def _rejects(self, checks: Checks, bad: DataFrame | None) -> str | None:
        """Write the rejects, and return why the load can't go on with so many of them; None if it can."""
        report, plan = self._report, self._plan
        if bad is None and plan.rejects is None:
            return None
        located = numbered(bad, checks.parts) if bad is not None else checks.rows.where("false")
        records = rejected(located, checks.names, checks.reasons)
        if plan.rejects is not None:
            write(records, plan.rejects, report.rejected)
            report.rejects_folder = plan.rejects
        if report.rejected:
            report.rejects = some(records, _SHOWN)
        if plan.max_rejects is not None and not plan.max_rejects.allows(report.rejected, report.read):
            return f"--max-rejects allows {plan.max_rejects}"
        if plan.max_rejects is None and plan.rejects is None:
            return "nothing would keep them: give --rejects DIR to load the other rows, or --max-rejects N"
        return None

    def _persist(self, frame: DataFrame) -> DataFrame:
        """Persist a frame until the load is over."""
        self._persisted.callback(frame.unpersist)
        return frame.persist()

    @contextmanager
    def _stage(self, name: str, rows: int | None) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._report.seconds[name] = seconds = time.monotonic() - started
            log.info("%s: %.1f s%s", name, seconds, f", {rows:,} rows" if rows else "")
