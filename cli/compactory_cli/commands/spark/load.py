"""``compactory spark load``: checks the arguments, loads, prints the report."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from compactory.errors import ConfigError
from compactory.threads import start_thread
from compactory_connectors.spark.failures import spark_failures
from compactory_connectors.spark.report import LoadReport, Outcome
from compactory_connectors.spark.rules.limit import Limit
from compactory_connectors.spark.rules.rules import FileFormat, Rules
from compactory_connectors.spark.rules.rules_file import read_rules
from compactory_connectors.spark.session import SparkOptions, session
from compactory_connectors.spark.target import Mode

from ...context.configuration import Configuration
from ...context.failure import StepFailed
from ...context.session import Problems
from ...views.spark_view import show_report
from .targets import Aim, TopicAim, aim_at, aims_of_references, reference_frame

if TYPE_CHECKING:
    from compactory_connectors.spark.load_job import Plan

__all__ = ["LoadCommand"]

log = logging.getLogger("compactory.spark")


@dataclass(frozen=True, kw_only=True)
class LoadCommand:
    """The arguments of a load, and the load."""

    configuration: Configuration
    options: SparkOptions
    sources: Sequence[str]
    directory: str
    to: str
    rules_file: Path | None
    mode: str
    dry_run: bool
    rejects: str | None
    max_rejects: str | None
    max_deactivate: str | None
    load_id: str | None
    report_file: Path | None
    format: str | None
    providers: Sequence[str]

    def run(self) -> None:
        """Load. Raises ConfigError with all problems of the arguments, StepFailed if a limit refuses the load."""
        problems = Problems()
        rules = problems.of(lambda: read_rules(self.rules_file) if self.rules_file is not None else Rules()) or Rules()
        configured = self.configuration, self.providers
        aim = problems.of(lambda: aim_at(*configured, self.to, self.directory, rules))
        references = problems.of(lambda: aims_of_references(*configured, rules))
        for check in (self._max_rejects, self._max_deactivate, self._check_report):
            problems.of(check)
        problems.raise_any()
        assert aim is not None
        assert references is not None
        report = LoadReport(
            load_id=f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}" if self.load_id is None else self.load_id,
            directory=self.directory,
            target=aim.label,
            mode=Mode(self.mode),
            source=self.sources,
        )
        try:
            self._load(aim, references, rules, report)
        except BaseException as error:
            report.why = str(error) or type(error).__name__
            raise
        finally:
            self._write_report(report)
        show_report(report)
        if report.outcome is Outcome.REFUSED:
            raise StepFailed(f"nothing was written: {report.why}")

    def _load(self, aim: Aim, references: Mapping[str, Aim], rules: Rules, report: LoadReport) -> None:
        aim.check()
        log.setLevel(logging.INFO)  # a line after each stage, at every log level: a load takes minutes
        # while Spark's JVM starts
        start_thread("import-load", import_module, "compactory_connectors.spark.load_job")
        with spark_failures(), session(f"compactory load {self.directory}", self.options) as spark:
            from compactory_connectors.spark.load_job import Load

            plan = self._plan(aim, references, rules)
            with closing(aim.target(spark, report.load_id)) as target:
                Load(spark, target, plan, report).run()

    def _plan(self, aim: Aim, references: Mapping[str, Aim], rules: Rules) -> Plan:
        from compactory_connectors.spark.load_job import Plan

        plan = Plan(
            sources=self.sources,
            format=FileFormat(self.format) if self.format else None,
            rules=rules,
            references=partial(reference_frame, references),
            whole=isinstance(aim, TopicAim),
            mode=Mode(self.mode),
            dry_run=self.dry_run,
            rejects=self.rejects,
            max_rejects=self._max_rejects(),
        )
        limit = self._max_deactivate() or aim.limit
        return plan if limit is None else replace(plan, max_deactivate=limit)

    def _max_rejects(self) -> Limit | None:
        return Limit.parse(self.max_rejects, "--max-rejects") if self.max_rejects else None

    def _max_deactivate(self) -> Limit | None:
        return Limit.parse(self.max_deactivate, "--max-deactivate") if self.max_deactivate else None

    def _check_report(self) -> None:
        if self.report_file is not None and not self.report_file.parent.is_dir():
            raise ConfigError(f"--report {self.report_file}: there is no folder {self.report_file.parent}")
        if self.report_file is not None and self.report_file.is_dir():
            raise ConfigError(f"--report {self.report_file}: is a folder; name a file in it")

    def _write_report(self, report: LoadReport) -> None:
        if self.report_file is not None:
            text = json.dumps(report.as_json(), ensure_ascii=False, indent=1, default=str)
            self.report_file.write_text(text + "\n", encoding="utf-8")
