"""The report at the end of a load, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from compactory_connectors.spark.checking.rejects import Rejected
from compactory_connectors.spark.report import LoadReport, Outcome
from compactory_connectors.spark.target import Change, Mode, Sample

from .terminal import number, print_json, print_table, printable, write

__all__ = ["show"]

_HEADS = {
    Outcome.DONE: "loaded",
    Outcome.REPEATED: "was loaded before under this id: nothing to do",
    Outcome.DRY_RUN: "a load would change (nothing was written)",
    Outcome.REFUSED: "refused, nothing was written",
    Outcome.FAILED: "failed, nothing was written",
}
_LONGEST = 100
"""Characters of a record that are shown."""


def show(report: LoadReport, *, as_json: bool) -> None:
    """Print it on stdout."""
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


def _numbers(what: str, rows: Sequence[tuple[str, int]]) -> None:
    print_table((what, "number"), ((name, number(count)) for name, count in rows), right=("number",))


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
    for each in report.rejects:
        write(f"{_place(each)}{'; '.join(each.reasons)}\n    {_short(each.record)}")
    if report.rejects_folder is not None:
        write(f"all rejected rows are in {report.rejects_folder}")


def _place(reject: Rejected) -> str:
    if reject.file is None:
        return ""
    return f"{reject.file}:{reject.line}: " if reject.line is not None else f"{reject.file}: "


def _differences(sample: Sample) -> Iterator[str]:
    before, after = sample.before, sample.after
    if before is None or after is None or before == after:
        yield from (f"{name} {_shown(value)}" for name, value in (after or before or {}).items())
        return
    for name in {**before, **after}:
        old, new = _shown(before.get(name)), _shown(after.get(name))
        yield f"{name} {new}" if old == new else f"{name} {old} → {new}"


def _shown(value: Any) -> str:
    return "null" if value is None else _short(str(value))


def _short(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"
