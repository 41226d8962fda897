"""``compactory spark load``: what was asked for, checked; the load; what it says at its end."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from compactory.errors import ConfigError
from compactory_connectors.spark.failures import spark_failures
from compactory_connectors.spark.into_table.to_postgres import PostgresTarget
from compactory_connectors.spark.load import Load, Plan
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
from ...views.spark_view import show
from .arguments import LoadArguments
from .targets import Aim, References, TableAim, TopicAim, aim_at

__all__ = ["LoadCommand"]


@dataclass(frozen=True, kw_only=True)
class LoadCommand(LoadArguments):
    """The command's arguments, as they were given."""

    configuration: Configuration
    options: SparkOptions
    as_json: bool

    def run(self) -> None:
        """Load. Raises ConfigError with all that is wrong with the arguments, StepFailed where a limit refuses."""
        problems = Problems()
        rules = problems.of(self._rules)
        plan = problems.of(lambda: self._plan(rules or Rules()))
        given = self.configuration, self.provider or ()
        aim = problems.of(lambda: aim_at(*given, self.to, self.directory, rules or Rules()))
        references = problems.of(lambda: References.of(*given, rules or Rules()))
        for check in (self._check_sources, self._limit, self._check_report):
            problems.of(check)
        problems.raise_any()
        assert plan is not None
        assert aim is not None
        assert references is not None
        plan = replace(plan, max_deactivate=self._limit() or aim.limit, whole=isinstance(aim, TopicAim))
        report = LoadReport(
            load_id=self.load_id or _new_id(),
            directory=self.directory,
            target=aim.label,
            mode=plan.mode,
            source=[*map(_without_secrets, self.sources), *([self.table] if self.table else [])],
        )
        try:
            self._load(plan, aim, references, report)
        except BaseException as error:
            report.why = str(error) or type(error).__name__
            raise
        finally:
            self._write_report(report)
        show(report, as_json=self.as_json)
        if report.outcome is Outcome.REFUSED:
            raise StepFailed(f"nothing was written: {report.why}")

    def _load(self, plan: Plan, aim: Aim, references: References, report: LoadReport) -> None:
        if isinstance(aim, TableAim):
            aim.check()
        with spark_failures(), StageBars() as stages:
            stages.begin("starting Spark", None)
            with session(f"compactory load {self.directory}", self._spark_options()) as spark, stages.watching(spark):
                target = aim.target(spark, report.load_id, self.dry_run)
                with closing(target):
                    if isinstance(target, PostgresTarget) and not self.dry_run:
                        plan = replace(plan, repeated=target.repeated)
                    plan = replace(plan, references=partial(references.frame, spark))
                    # basedpyright takes a cached property for an attribute that may be set
                    Load(spark, target, plan, report, stages).run()  # pyright: ignore[reportArgumentType]

    def _spark_options(self) -> SparkOptions:
        return replace(self.options, postgres_driver=self.sources[0].startswith("jdbc:postgresql:"))

    def _rules(self) -> Rules:
        return read_rules(self.rules) if self.rules is not None else Rules()

    def _check_sources(self) -> None:
        jdbc = [source for source in self.sources if source.startswith("jdbc:")]
        if jdbc and (len(self.sources) > 1 or self.table is None):
            raise ConfigError("a JDBC URL is a source by itself, and needs --table: a table, or a query in parentheses")
        if self.table is not None and not jdbc:
            raise ConfigError(
                f"--table {self.table}: is for a source behind a JDBC URL: jdbc:postgresql://HOST/DATABASE"
            )

    def _plan(self, rules: Rules) -> Plan:
        return Plan(
            sources=self.sources,
            table=self.table,
            jdbc={"password": password} if (password := self.configuration.jdbc_password) else {},
            format=FileFormat(self.format) if self.format else None,
            rules=rules,
            mode=Mode(self.mode),
            dry_run=self.dry_run,
            rejects=self.rejects,
            max_rejects=Limit.parse(self.max_rejects, "--max-rejects") if self.max_rejects else None,
        )

    def _limit(self) -> Limit | None:
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
    """A JDBC URL as far as it says which server and database: drivers take users and passwords in many places."""
    if not source.startswith("jdbc:"):
        return source
    place = re.match(r"jdbc:\w+://[\w.,:\[\]-]+(/[\w.-]*)?(?=[?;]|\Z)", source) if "@" not in source else None
    return place[0] if place else ":".join([*source.split(":")[:2], "…"])


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}"
