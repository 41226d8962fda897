"""A running store beside its topic, at the positions that the store names.

Digests by key range first, each side's computed where its records are; then the records of ranges that differ. The
store goes on reading meanwhile, so what is listed may be newer than what was digested: a key that differs counts only
where the topic has no record of it behind the digest's positions. Then the store had read all there is of the key, and
nothing will change it. The others are looked at again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark.sql import DataFrame

from compactory.errors import CompactoryError
from compactory.lookup.digest import DirectoryDigest, range_of
from compactory_connectors.source.reconcile.checker import Finding
from compactory_connectors.source.reconcile.progress import Progress, untold

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


@dataclass(slots=True, kw_only=True)
class _Compared:
    """The results so far."""

    first: StoreDigest
    behind: int
    expected: int
    bad: int
    ranges: int = 0
    cut: bool = False
    """More keys differ than are looked at."""
    findings: dict[bytes, Finding] = field(default_factory=dict)


def compare_store(
    topic: TopicStates,
    store: RunningStore,
    directory: str,
    *,
    wait: float = 30.0,
    most: int = 20,
    progress: Progress = untold,
) -> SideOutcome:
    """Compare; keys that are being written are looked at for ``wait`` seconds, ``most`` differing ones are shown.

    Raises what reading the topic raises; what the store answers wrong, or not at all, is in the outcome.
    """
    began = time.monotonic()
    try:
        compared = _compare(topic, store, directory, wait, progress)
        return _shown(topic, store, directory, compared, most, time.monotonic() - began)
    except _StoreFailed as failed:
        seconds = time.monotonic() - began
        return SideOutcome(kind="store", place=store.place, failure=str(failed), seconds=seconds)


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


def _compare(topic: TopicStates, store: RunningStore, directory: str, wait: float, progress: Progress) -> _Compared:
    deadline = time.monotonic() + wait
    found = _digest(topic, store, directory)
    progress(f"store {store.place}", found.digest.total.count)
    frame = topic.at(found.positions)
    digest, bad = digest_held(frame, found.directory)
    behind = topic.extent.behind(found.positions)
    compared = _Compared(first=found, behind=behind, expected=digest.total.count, bad=max(bad, found.bad))
    ranges = digest.differing(found.digest)
    compared.ranges = len(ranges)
    suspects = _suspects(frame, found, digest, store, ranges, progress)
    compared.cut = len(suspects) >= _MOST
    while suspects:
        changing = topic.touched(found.positions, suspects)
        compared.findings |= {key: its for key, its in suspects.items() if key not in changing}
        if compared.cut and not compared.findings:
            raise _StoreFailed(f"{len(suspects):,} keys differ or more, all of them written just now; compare again")
        if not changing or compared.cut:
            return compared
        if time.monotonic() > deadline:
            compared.findings |= dict.fromkeys(changing, Finding.CHANGING)
            return compared
        time.sleep(_PAUSE)
        progress("keys being written", len(changing))
        found = _digest(topic, store, directory)
        frame = topic.at(found.positions)
        again = _suspects(frame, found, digest, store, sorted({range_of(key) for key in changing}), progress)
        suspects = {key: its for key, its in again.items() if key in changing}
    return compared


def _digest(topic: TopicStates, store: RunningStore, directory: str) -> StoreDigest:
    """The store's digest; the topic's ends are looked at after it."""
    with _asked():
        found = read_digest(store.digest(directory))
    extent = topic.look()
    if found.directory.topic != topic.topic or extent.topic_id not in (None, found.topic_id or extent.topic_id):
        what = f"topic {found.directory.topic!r}" + (f" of id {found.topic_id}" if found.topic_id else "")
        raise _StoreFailed(
            f"its directory {directory!r} is read from {what}, not from {topic.topic!r} of id {extent.topic_id}"
        )
    return found


def _suspects(
    frame: DataFrame,
    found: StoreDigest,
    ours: DirectoryDigest,
    store: RunningStore,
    ranges: Sequence[int],
    progress: Progress,
) -> dict[bytes, Finding]:
    """The keys of these ranges that are not equal; not all of them where there are too many."""
    suspects: dict[bytes, Finding] = {}
    for some in _grouped(found.digest, ours, ranges):
        rows = list_held(frame, found.directory, some).collect()
        mine = {bytes(row[0]): Mine(bytes(row[1]), row[2]) for row in rows}
        for record in _records(store, found.directory.name, some):
            kind = finding_of(mine.pop(record.key, None), record)
            if kind is not None:
                suspects[record.key] = kind
        for key, its in mine.items():
            if finding_of(its, None) is not None:
                suspects[key] = Finding.MISSING
        progress("differing keys", len(suspects))
        if len(suspects) >= _MOST:
            break
    return suspects


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


def _records(
    store: RunningStore, directory: str, ranges: Collection[int], *, values: bool = False
) -> Iterator[StoreRecord]:
    with _asked():
        for line in store.digest_records(directory, ranges, values=values):
            yield read_record(line)


def _shown(
    topic: TopicStates, store: RunningStore, directory: str, compared: _Compared, most: int, seconds: float
) -> SideOutcome:
    staying = sorted(key for key, finding in compared.findings.items() if finding.stays)[:most]
    expected = topic.values(topic.extent.ends, staying) if staying else {}
    found: dict[bytes, bytes | None] = {}
    if staying:
        wanted = set(staying)
        ranges = sorted({range_of(key) for key in staying})
        found = {each.key: each.value for each in _records(store, directory, ranges, values=True) if each.key in wanted}
    return SideOutcome(
        kind="store",
        place=store.place,
        positions=compared.first.positions,
        behind=compared.behind,
        expected=compared.expected,
        stored=compared.first.digest.total.count,
        bad=compared.bad,
        ranges=compared.ranges,
        findings=Counter(compared.findings.values()),
        differences=[
            Differing(key=key, finding=compared.findings[key], expected=expected.get(key), found=found.get(key))
            for key in staying
        ],
        notes=_notes(compared),
        seconds=seconds,
    )


def _notes(compared: _Compared) -> list[str]:
    notes = []
    if compared.first.callable:
        notes.append("its values are checked by a function of its own: which records are bad is known there alone")
    if compared.cut:
        notes.append(f"{len(compared.findings):,} keys differ or more; no more were looked at")
    return notes


@contextmanager
def _asked() -> Iterator[None]:
    """Tells what asking a store raises from what the topic raises."""
    try:
        yield
    except CompactoryError as error:
        raise _StoreFailed(str(error)) from error
