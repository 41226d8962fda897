"""``compactory spark load``: checks the arguments, loads, prints the report."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from compactory.errors import ConfigError
from compactory.threads import start_thread
from compactory_connectors.spark.checking.rejects import Rejected
from compactory_connectors.spark.failures import spark_failures
from compactory_connectors.spark.report import LoadReport, Outcome
from compactory_connectors.spark.rules.limit import Limit
from compactory_connectors.spark.rules.rules import FileFormat, Rules
from compactory_connectors.spark.rules.rules_file import read_rules
from compactory_connectors.spark.session import SparkOptions, session
from compactory_connectors.spark.target import Change, Mode, Sample

from ...context.configuration import Configuration
from ...context.failure import StepFailed
from ...context.session import Problems
from ...views.terminal import number, print_json, print_table, printable, wants_json, write
from .targets import Aim, TopicAim, aim_at, aims_of_references, reference_frame

__all__ = ["load"]

log = logging.getLogger("compactory.spark")

_HEADS = {
    Outcome.DONE: "loaded",
    Outcome.REPEATED: "was loaded before under this id: nothing to do",
    Outcome.DRY_RUN: "a load would change (nothing was written)",
    Outcome.REFUSED: "refused, nothing was written",
    Outcome.FAILED: "failed, nothing was written",
}
_LONGEST = 100  # characters of a record that are shown


def load(
    configuration: Configuration,
    options: SparkOptions,
    directory: str,
    to: str,
    *,
    rules_file: Path | None,
    report_file: Path | None,
    load_id: str | None,
    limits: Mapping[str, str | None],
    providers: Sequence[str],
    mode: str,
    form: str | None,
    **plan_options: Any,
) -> None:
    """Load, and write the report, also of a load that fails.

    ``limits`` has the texts of ``--max-rejects`` and ``--max-deactivate``; ``plan_options`` are fields of `Plan`.

    Raises ConfigError with all problems of the arguments, StepFailed if a limit refuses the load.
    """
    problems = Problems()
    rules = problems.of(lambda: read_rules(rules_file) if rules_file is not None else Rules()) or Rules()
    aim = problems.of(partial(aim_at, configuration, providers, to, directory, rules))
    references = problems.of(partial(aims_of_references, configuration, providers, rules))
    parsed = {name: problems.of(partial(Limit.parse, text, name)) for name, text in limits.items() if text}
    problems.of(partial(_check_report_file, report_file))
    problems.raise_any()
    assert aim is not None
    assert references is not None
    report = LoadReport(
        load_id=f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}" if load_id is None else load_id,
        directory=directory,
        target=aim.label,
        mode=Mode(mode),
        source=plan_options["sources"],
    )
    plan_options |= {
        "format": FileFormat(form) if form else None,
        "rules": rules,
        "references": partial(reference_frame, references),
        "whole": isinstance(aim, TopicAim),
        "mode": report.mode,
        "max_rejects": parsed.get("--max-rejects"),
    }
    if limit := parsed.get("--max-deactivate") or aim.limit:
        plan_options["max_deactivate"] = limit
    try:
        _load(aim, plan_options, options, report, is_named=load_id is not None)
    except BaseException as error:
        report.why = str(error) or type(error).__name__
        raise
    finally:
        if report_file is not None:
            text = json.dumps(report.as_json(), ensure_ascii=False, indent=1, default=str)
            report_file.write_text(text + "\n", encoding="utf-8")
    _show_report(report)
    if report.outcome is Outcome.REFUSED:
        raise StepFailed(f"nothing was written: {report.why}")


def _load(
    aim: Aim, plan_options: Mapping[str, Any], options: SparkOptions, report: LoadReport, *, is_named: bool
) -> None:
    """Start Spark, load, and fill the report."""
    aim.check()
    log.setLevel(logging.INFO)  # a line after each stage, at every log level: a load takes minutes
    # while Spark's JVM starts
    start_thread("import-load", import_module, "compactory_connectors.spark.load_job")
    with spark_failures(), session(f"compactory load {report.directory}", options) as spark:
        from compactory_connectors.spark.load_job import Load, Plan

        with closing(aim.target(spark, report.load_id, is_named=is_named)) as target:
            Load(spark, target, Plan(**plan_options), report).run()


def _check_report_file(path: Path | None) -> None:
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"--report {path}: there is no folder {path.parent}")
    if path is not None and path.is_dir():
        raise ConfigError(f"--report {path}: is a folder; name a file in it")


def _show_report(report: LoadReport) -> None:
    if wants_json():
        print_json(report.as_json())
        return
    write(f"{report.target}: {_HEADS[report.outcome]}")
    write(f"load {report.load_id}, {sum(report.seconds.values()):.1f} s")
    if report.outcome is not Outcome.REPEATED:
        files = f" from {number(report.files)} files" if report.files is not None and report.files != 1 else ""
        counts = {f"read{files}": report.read, "rejected": report.rejected}
        _print_counts("rows", counts | {"duplicates left out": report.duplicates, "accepted": report.accepted})
    if report.reasons:
        _print_reasons(report)
    if report.changes:
        counts = {change.value: report.changes.get(change, 0) for change in Change}
        if report.mode is Mode.UPSERT and not counts[Change.DEACTIVATE.value]:
            del counts[Change.DEACTIVATE.value]
        _print_counts("keys", counts)
    if report.outcome in {Outcome.DRY_RUN, Outcome.REFUSED}:
        for change, samples in report.samples.items():
            for sample in samples:
                write(f"{change.value}: {', '.join(_differences(sample))}")
    for note in report.notes:
        write(f"note: {note}")


def _print_reasons(report: LoadReport) -> None:
    rows = ((number(count), printable(str(reason))) for reason, count in report.reasons.items())
    print_table(("rows", "rejected because"), rows, right=("rows",))
    for reject in report.rejects:
        write(f"{_place(reject)}{'; '.join(reject.reasons)}\n    {_short(reject.record)}")
    if report.rejects_folder is not None:
        write(f"all rejected rows are in {report.rejects_folder}")


def _print_counts(noun: str, counts: Mapping[str, int]) -> None:
    print_table((noun, "number"), ((name, number(count)) for name, count in counts.items()), right=("number",))


def _place(reject: Rejected) -> str:
    line = f":{reject.line}" if reject.line is not None else ""
    return f"{reject.file}{line}: " if reject.file is not None else ""


def _differences(sample: Sample) -> Iterator[str]:
    """Yield each column with its value, or with both values where a change makes them differ."""
    old_row, new_row = sample.before or {}, sample.after or {}
    for name in {**old_row, **new_row}:
        old, new = _value_text(old_row.get(name)), _value_text(new_row.get(name))
        is_changed = bool(old_row) and bool(new_row) and old != new
        yield f"{name} {old} → {new}" if is_changed else f"{name} {new if name in new_row else old}"


def _value_text(value: Any) -> str:
    return "null" if value is None else _short(str(value))


def _short(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"
