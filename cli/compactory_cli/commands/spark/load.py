"""``compactory spark load``: checks the arguments, loads, prints the report."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
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
from ...views.spark_progress import StageBars
from ...views.spark_view import show_report
from .arguments import LoadArguments
from .targets import Aim, References, TableAim, TopicAim, aim_at

if TYPE_CHECKING:
    from compactory_connectors.spark.load_job import Plan

__all__ = ["LoadCommand"]


@dataclass(frozen=True, kw_only=True)
class LoadCommand(LoadArguments):
    """The arguments of a load, and the load."""

    configuration: Configuration
    options: SparkOptions
    as_json: bool

    def run(self) -> None:
        """Load. Raises ConfigError with all problems of the arguments, StepFailed if a limit refuses the load."""
        problems = Problems()
        rules = problems.of(lambda: read_rules(self.rules) if self.rules is not None else Rules()) or Rules()
        configured = self.configuration, self.provider or ()
        aim = problems.of(lambda: aim_at(*configured, self.to, self.directory, rules))
        references = problems.of(lambda: References.of(*configured, rules))
        for check in (self._check_sources, self._max_rejects, self._max_deactivate, self._check_report):
            problems.of(check)
        problems.raise_any()
        assert aim is not None
        assert references is not None
        report = LoadReport(
            load_id=f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}" if self.load_id is None else self.load_id,
            directory=self.directory,
            target=aim.label,
            mode=Mode(self.mode),
            source=[*map(_without_secrets, self.sources), *([self.table] if self.table else [])],
        )
        try:
            self._load(aim, references, rules, report)
        except BaseException as error:
            report.why = str(error) or type(error).__name__
            raise
        finally:
            self._write_report(report)
        show_report(report, as_json=self.as_json)
        if report.outcome is Outcome.REFUSED:
            raise StepFailed(f"nothing was written: {report.why}")

    def _load(self, aim: Aim, references: References, rules: Rules, report: LoadReport) -> None:
        if isinstance(aim, TableAim):
            aim.check()
        with spark_failures(), StageBars() as stages:
            stages.begin("starting Spark", None)
            start_thread(
                "import-load", import_module, "compactory_connectors.spark.load_job"
            )  # while Spark's JVM starts
            with session(f"compactory load {self.directory}", self._spark_options()) as spark:
                from compactory_connectors.spark.load_job import Load

                plan = self._plan(aim, references, rules)
                with stages.watching(spark), closing(aim.target(spark, report.load_id, self.dry_run)) as target:
                    Load(spark, target, plan, report, stages).run()

    def _spark_options(self) -> SparkOptions:
        postgres = self.sources[0].startswith("jdbc:postgresql:")
        return replace(self.options, postgres_driver=postgres)

    def _check_sources(self) -> None:
        jdbc = [source for source in self.sources if source.startswith("jdbc:")]
        if jdbc and (len(self.sources) > 1 or self.table is None):
            raise ConfigError("a JDBC URL is a source by itself, and needs --table: a table, or a query in parentheses")
        if self.table is not None and not jdbc:
            raise ConfigError(
                f"--table {self.table}: is for a source behind a JDBC URL: jdbc:postgresql://HOST/DATABASE"
            )

    def _plan(self, aim: Aim, references: References, rules: Rules) -> Plan:
        from compactory_connectors.spark.load_job import Plan

        plan = Plan(
            sources=self.sources,
            table=self.table,
            jdbc={"password": password} if (password := self.configuration.jdbc_password) else {},
            format=FileFormat(self.format) if self.format else None,
            rules=rules,
            references=references.frame,
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
        if self.report is not None and not self.report.parent.is_dir():
            raise ConfigError(f"--report {self.report}: there is no folder {self.report.parent}")
        if self.report is not None and self.report.is_dir():
            raise ConfigError(f"--report {self.report}: is a folder; name a file in it")

    def _write_report(self, report: LoadReport) -> None:
        if self.report is not None:
            text = json.dumps(report.as_json(), ensure_ascii=False, indent=1, default=str)
            self.report.write_text(text + "\n", encoding="utf-8")


def _without_secrets(source: str) -> str:
    """Return server and database of a JDBC URL without the rest, which may have a password."""
    if not source.startswith("jdbc:"):
        return source
    place = re.match(r"jdbc:\w+://[\w.,:\[\]-]+(/[\w.-]*)?(?=[?;]|\Z)", source) if "@" not in source else None
    return place[0] if place else ":".join([*source.split(":")[:2], "…"])
