"""The outcome of comparing a topic with one more side of it: a running store, or exported files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compactory_connectors.source.verify.checker import Finding

from ..html import report_html

__all__ = ["Differing", "SideOutcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """A key that differs for good: its value in the topic, and on the other side. None: nothing."""

    key: bytes
    finding: Finding
    expected: bytes | None = field(repr=False)
    found: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOutcome:
    """One side beside the topic. ``findings`` counts keys that are not equal."""

    kind: str
    """``store`` or ``export``."""
    place: str
    positions: Mapping[int, int] = field(default_factory=dict)
    """The comparison took the topic up to these offsets."""
    behind: int = 0
    """Offsets between these and the topic's end when it was looked at."""
    expected: int = 0
    """Records that the topic has there."""
    stored: int = 0
    bad: int = 0
    """Keys whose newest record can't be read; not compared."""
    ranges: int = 0
    """Key ranges whose digests differed."""
    findings: Mapping[Finding, int] = field(default_factory=Counter)
    differences: Sequence[Differing] = ()
    """The first ones, with their values."""
    notes: Sequence[str] = ()
    failure: str | None = None
    """Why it could not be compared."""
    lasting: bool = False
    """Trying again will not help it."""
    seconds: float = 0.0

    @property
    def different(self) -> int:
        """Keys that differ for good."""
        return sum(count for finding, count in self.findings.items() if finding.is_final_difference)

    @property
    def open(self) -> int:
        """Keys on which there is no verdict."""
        return sum(count for finding, count in self.findings.items() if finding.is_open)

    @property
    def equal(self) -> bool:
        """Whether it holds what the topic has."""
        return self.failure is None and not self.different and not self.open

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        told = "equal" if self.equal else self.failure or f"{self.different:,} keys differ, {self.open:,} are open"
        rows = [("records of the topic", self.expected), ("records there", self.stored), ("bad records", self.bad)]
        rows += [(finding.value, count) for finding, count in self.findings.items()]
        keys = [f"{each.finding.value}: {each.key.decode(errors='replace')}" for each in self.differences]
        return report_html(f"{self.kind} {self.place}: {told}", rows, [*keys, *self.notes])
