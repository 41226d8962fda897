"""The report at the end of a load, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from compactory_connectors.spark.checking.rejects import Rejected
from compactory_connectors.spark.report import LoadReport, Outcome
from compactory_connectors.spark.target import Change, Mode, Sample

from .terminal import number, print_json, print_table, printable, wants_json, write

__all__ = ["show_report"]

_HEADS = {
    Outcome.DONE: "loaded",
    Outcome.REPEATED: "was loaded before under this id: nothing to do",
    Outcome.DRY_RUN: "a load would change (nothing was written)",
    Outcome.REFUSED: "refused, nothing was written",
    Outcome.FAILED: "failed, nothing was written",
}
_LONGEST = 100
"""Characters of a record that are shown."""


def show_report(report: LoadReport) -> None:
    """Print the report of a load on stdout."""
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
    old_row, new_row = sample.before or {}, sample.after or {}
    is_change = bool(old_row) and bool(new_row) and old_row != new_row
    for name in {**old_row, **new_row}:
        old, new = _value_text(old_row.get(name)), _value_text(new_row.get(name))
        if is_change and old != new:
            yield f"{name} {old} → {new}"
        else:
            yield f"{name} {new if name in new_row else old}"


def _value_text(value: Any) -> str:
    return "null" if value is None else _short(str(value))


def _short(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"
