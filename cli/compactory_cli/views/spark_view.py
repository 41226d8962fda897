"""The report at the end of a load, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from compactory_connectors.spark.checking.rejects import Rejected
from compactory_connectors.spark.report import LoadReport, Outcome
from compactory_connectors.spark.target import Change, Mode, Sample

from .terminal import number, print_json, print_table, printable, write

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


def show_report(report: LoadReport, *, as_json: bool) -> None:
    """Print the report of a load on stdout."""
    if as_json:
        print_json(report.as_json())
        return
    write(f"{report.target}: {_HEADS[report.outcome]}")
    write(f"load {report.load_id}, {sum(report.seconds.values()):.1f} s")
    if report.outcome is not Outcome.REPEATED:
        _numbers("rows", _rows(report))
    if report.reasons:
        _reasons(report)
    if report.changes:
        _numbers("keys", _changes(report))
    if report.outcome in {Outcome.DRY_RUN, Outcome.REFUSED}:
        for change, samples in report.samples.items():
            for sample in samples:
                write(f"{change.value}: {', '.join(_differences(sample))}")
    for note in report.notes:
        write(f"note: {note}")


def _numbers(noun: str, rows: Sequence[tuple[str, int]]) -> None:
    print_table((noun, "number"), ((name, number(count)) for name, count in rows), right=("number",))


def _rows(report: LoadReport) -> list[tuple[str, int]]:
    files = f" from {number(report.files)} files" if report.files is not None and report.files != 1 else ""
    return [
        (f"read{files}", report.read),
        ("rejected", report.rejected),
        ("duplicates left out", report.duplicates),
        ("accepted", report.accepted),
    ]


def _changes(report: LoadReport) -> list[tuple[str, int]]:
    names = {change: change.value for change in Change}
    if report.mode is Mode.UPSERT and not report.changes.get(Change.DEACTIVATE):
        del names[Change.DEACTIVATE]
    return [(name, report.changes.get(change, 0)) for change, name in names.items()]


def _reasons(report: LoadReport) -> None:
    rows = ((number(count), printable(str(reason))) for reason, count in report.reasons.items())
    print_table(("rows", "rejected because"), rows, right=("rows",))
    for reject in report.rejects:
        write(f"{_place_of_reject(reject)}{'; '.join(reject.reasons)}\n    {_shorten(reject.record)}")
    if report.rejects_folder is not None:
        write(f"all rejected rows are in {report.rejects_folder}")


def _place_of_reject(reject: Rejected) -> str:
    if reject.file is None:
        return ""
    return f"{reject.file}:{reject.line}: " if reject.line is not None else f"{reject.file}: "


def _differences(sample: Sample) -> Iterator[str]:
    old_row, new_row = sample.before, sample.after
    if old_row is None or new_row is None or old_row == new_row:
        yield from (f"{name} {_value_text(value)}" for name, value in (new_row or old_row or {}).items())
        return
    for name in {**old_row, **new_row}:
        old, new = _value_text(old_row.get(name)), _value_text(new_row.get(name))
        yield f"{name} {new}" if old == new else f"{name} {old} → {new}"


def _value_text(value: Any) -> str:
    return "null" if value is None else _shorten(str(value))


def _shorten(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"
