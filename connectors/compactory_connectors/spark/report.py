"""The report of a load, for people and programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from compactory.errors import CompactoryError

from .checking.checks import Reason
from .checking.rejects import Rejected
from .target import Change, Mode, Sample

__all__ = ["LoadRefused", "LoadReport", "Outcome"]


class Outcome(StrEnum):
    """The end of a load."""

    DONE = "done"
    REPEATED = "repeated"
    """A load with this id was done before: nothing was done now."""
    DRY_RUN = "dry run"
    REFUSED = "refused"
    """A limit was passed: nothing was written."""
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class LoadReport:
    """Filled while the load goes on, so that a load that fails has one as well. Belongs to one thread."""

    load_id: str
    directory: str
    target: str
    mode: Mode
    source: Sequence[str]
    files: int | None = None
    read: int = 0
    rejected: int = 0
    duplicates: int = 0
    """Rows that another row of their key replaced, or that were equal to it."""
    accepted: int = 0
    reasons: Mapping[Reason, int] = field(default_factory=dict)
    rejects: Sequence[Rejected] = field(default=(), repr=False)
    rejects_folder: str | None = None
    present: int = 0
    changes: Mapping[Change, int] = field(default_factory=dict)
    samples: Mapping[Change, Sequence[Sample]] = field(default_factory=dict, repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    outcome: Outcome = Outcome.FAILED
    why: str | None = None
    """The reason of a refusal or a failure."""

    def as_json(self) -> dict[str, Any]:
        return {
            "load_id": self.load_id,
            "directory": self.directory,
            "target": self.target,
            "mode": self.mode.value,
            "outcome": self.outcome.value,
            "why": self.why,
            "source": list(self.source),
            "files": self.files,
            "rows": {
                "read": self.read,
                "rejected": self.rejected,
                "duplicates": self.duplicates,
                "accepted": self.accepted,
            },
            "reasons": [
                {"column": reason.column or None, "rule": reason.rule, "text": str(reason), "rows": count}
                for reason, count in self.reasons.items()
            ],
            "rejects": self.rejects_folder,
            "present": self.present,
            "changes": {change.value: self.changes[change] for change in Change if change in self.changes},
            "samples": {
                change.value: [{"before": sample.before, "after": sample.after} for sample in samples]
                for change, samples in self.samples.items()
            },
            "seconds": {stage: round(seconds, 3) for stage, seconds in self.seconds.items()},
            "notes": list(self.notes),
        }


class LoadRefused(CompactoryError):
    """A limit refused the load, and nothing was written. ``report`` has the numbers, and examples of rejected rows."""

    def __init__(self, report: LoadReport) -> None:
        super().__init__(f"{report.target}: nothing was written: {report.why}")
        self.report = report
