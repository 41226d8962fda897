"""A running store beside its topic, at the positions that the store names.

Digests by key range first, each side's computed where its records are; then the records of ranges that differ. The
store goes on reading meanwhile, so what is listed may be newer than what was digested: a key that differs counts only
where the topic has no record of it behind the digest's positions. Then the store had read all there is of the key, and
nothing will change it. The others are looked at again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from compactory.errors import CompactoryError
from compactory.read.digest import DirectoryDigest, range_of
from compactory_connectors.source.verify.checker import Finding
from compactory_connectors.source.verify.outcome import Progress, ignore_progress

from .held import BAD, HELD, digest_held, list_held
from .running_store import RunningStore, StoreDigest, StoreRecord, read_digest, read_record
from .side import Differing, SideOutcome
from .topic_states import TopicStates

__all__ = ["compare_store", "finding_of"]

_LISTED: Final = 300_000  # records of a side that are looked at in the driver at once
_MOST: Final = 100_000  # differing keys that are looked at
_PAUSE: Final = 0.5  # seconds between two looks at keys that are being written


class Mine(NamedTuple):
    """The topic's record of a key."""

    digest: bytes
    state: str


def compare_store(
    topic: TopicStates,
    store: RunningStore,
    directory: str,
    *,
    wait: float = 30.0,
    most: int = 20,
    progress: Progress = ignore_progress,
) -> SideOutcome:
    """Compare; keys that are being written are looked at for ``wait`` seconds, ``most`` differing ones are shown.

    Raises what reading the topic raises; what the store answers wrong, or not at all, is in the outcome.
    """
    began = time.monotonic()
    comparison = _Comparison(topic=topic, store=store, name=directory, progress=progress)
    try:
        found = comparison.run(began + wait, most)
    except _StoreFailed as failed:
        found = SideOutcome(kind="store", place=store.place, failure=str(failed))
    return replace(found, seconds=time.monotonic() - began)


class _StoreFailed(CompactoryError):
    """The store could not be asked; the topic could."""


def finding_of(mine: Mine | None, its: StoreRecord | None) -> Finding | None:
    """The result for a key, unless a record of it is on its way; None: it is equal, or nothing is certain. Pure.

    A bad newest record is none that could be compared: the store goes on with the last good one.
    """
    if its is not None and its.bad:
        return None
    if mine is None:
        return None if its is None else Finding.EXTRA
    if its is None:
        return Finding.MISSING if mine.state == HELD else None
    if mine.state == BAD or its.digest == mine.digest:
        return None
    return Finding.DIFFERENT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """A directory of a store, by the ``name`` that the store has for it, beside its topic."""

    topic: TopicStates
    store: RunningStore
    name: str
    progress: Progress

    def run(self, deadline: float, most: int) -> SideOutcome:
        """The outcome but for how long it took. Keys that are being written are looked at up to the deadline."""
        first = self._digest()
        self.progress(f"store {self.store.place}", first.digest.total.count)
        digest, bad = digest_held(self.topic.at(first.positions), first.directory)
        behind = self.topic.extent.behind(first.positions)
        ranges = digest.differing(first.digest)
        suspects = self._suspects(first, digest, ranges)
        cut = len(suspects) >= _MOST
        findings = self._settled(first, digest, suspects, deadline, cut=cut)
        return SideOutcome(
            kind="store",
            place=self.store.place,
            positions=first.positions,
            behind=behind,
            expected=digest.total.count,
            stored=first.digest.total.count,
            bad=max(bad, first.bad),
            ranges=len(ranges),
            findings=Counter(findings.values()),
            differences=self._differences(findings, most),
            notes=list(_notes(first, len(findings), cut=cut)),
        )

    def _settled(
        self,
        found: StoreDigest,
        ours: DirectoryDigest,
        suspects: Mapping[bytes, Finding],
        deadline: float,
        *,
        cut: bool,
    ) -> dict[bytes, Finding]:
        """The suspects that differ for good, and those that are still being written at the deadline."""
        findings: dict[bytes, Finding] = {}
        while suspects:
            changing = self.topic.touched(found.positions, suspects)
            findings |= {key: its for key, its in suspects.items() if key not in changing}
            if cut and not findings:
                raise _StoreFailed(
                    f"{len(suspects):,} keys differ or more, all of them written just now; compare again"
                )
            if not changing or cut:
                break
            if time.monotonic() > deadline:
                return findings | dict.fromkeys(changing, Finding.CHANGING)
            time.sleep(_PAUSE)
            self.progress("keys being written", len(changing))
            found = self._digest()
            again = self._suspects(found, ours, sorted({range_of(key) for key in changing}))
            suspects = {key: its for key, its in again.items() if key in changing}
        return findings

    def _digest(self) -> StoreDigest:
        """The store's digest; the topic's ends are looked at after it."""
        with _asked():
            found = read_digest(self.store.digest(self.name))
        extent = self.topic.look()
        if found.directory.topic != extent.topic or extent.topic_id not in (None, found.topic_id or extent.topic_id):
            what = f"topic {found.directory.topic!r}" + (f" of id {found.topic_id}" if found.topic_id else "")
            raise _StoreFailed(
                f"its directory {self.name!r} is read from {what}, not from {extent.topic!r} of id {extent.topic_id}"
            )
        return found

    def _suspects(self, found: StoreDigest, ours: DirectoryDigest, ranges: Sequence[int]) -> dict[bytes, Finding]:
        """The keys of these ranges that are not equal; not all of them where there are too many."""
        suspects: dict[bytes, Finding] = {}
        for some in _grouped(found.digest, ours, ranges):
            rows = list_held(self.topic.at(found.positions), found.directory, some).collect()
            mine = {bytes(row[0]): Mine(bytes(row[1]), row[2]) for row in rows}
            for record in self._records(some):
                kind = finding_of(mine.pop(record.key, None), record)
                if kind is not None:
                    suspects[record.key] = kind
            suspects |= dict.fromkeys((key for key, its in mine.items() if its.state == HELD), Finding.MISSING)
            self.progress("differing keys", len(suspects))
            if len(suspects) >= _MOST:
                break
        return suspects

    def _records(self, ranges: Collection[int], *, values: bool = False) -> Iterator[StoreRecord]:
        with _asked():
            yield from map(read_record, self.store.digest_records(self.name, ranges, values=values))

    def _differences(self, findings: Mapping[bytes, Finding], most: int) -> list[Differing]:
        """The first keys that differ for good, with their values."""
        staying = sorted(key for key, finding in findings.items() if finding.is_final_difference)[:most]
        if not staying:
            return []
        expected = self.topic.values(self.topic.extent.ends, staying)
        records = self._records(sorted({range_of(key) for key in staying}), values=True)
        shown = frozenset(staying)
        found = {record.key: record.value for record in records if record.key in shown}
        return [
            Differing(key=key, finding=findings[key], expected=expected.get(key), found=found.get(key))
            for key in staying
        ]


def _grouped(theirs: DirectoryDigest, ours: DirectoryDigest, ranges: Sequence[int]) -> Iterator[list[int]]:
    """The ranges in groups of as many records as can be looked at at once: each group costs the store a scan."""
    group: list[int] = []
    size = 0
    for number in ranges:
        count = max(theirs.ranges[number].count, ours.ranges[number].count)
        if group and size + count > _LISTED:
            yield group
            group, size = [], 0
        group.append(number)
        size += count
    if group:
        yield group


def _notes(store: StoreDigest, differing: int, *, cut: bool) -> Iterator[str]:
    if store.callable:
        yield "its values are checked by a function of its own: which records are bad is known there alone"
    if cut:
        yield f"{differing:,} keys differ or more; no more were looked at"


@contextmanager
def _asked() -> Iterator[None]:
    """Tells what asking a store raises from what the topic raises."""
    try:
        yield
    except CompactoryError as error:
        raise _StoreFailed(str(error)) from error
