"""The changes of a load in a topic: its records beside the topic's newest. Pure, and runs in the executors.

Tasks keep to themselves what stays, count everything, and pack what has to be sent, so that a driver which sends it in
one transaction is handed finished bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Self

import orjson
import pyarrow as pa
import pyarrow.compute

from compactory.codec.decoding import document_reader, field_reader
from compactory.directory import Directory
from compactory_connectors.kafka.partitioner import partition_of

from ..record_batch import Batches, of_rows
from ..target import Change, Mode, Sample
from .record_maker import Headers

__all__ = ["CHANGES", "COPIES", "Judge", "Outgoing", "Tally", "change_of", "living", "unpacked"]

_compute: Any = pyarrow.compute  # makes its functions when it is imported, which type checkers do not see

CHANGES: Final = pa.schema([("tally", pa.string()), ("records", pa.binary())])
"""The columns of what a judge gives: one tally a task, and packs of records."""

COPIES: Final = "array<struct<partition:int,timestamp_ms:bigint>>"
"""The type of the column of living copies, as Spark spells it."""

_PACKED: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ("strays", pa.list_(pa.struct([("partition", pa.int32()), ("timestamp_ms", pa.int64())]))),
    ]
)
_PACK: Final = 1 << 20  # bytes of keys and values
_SHOWN: Final = 5


class Outgoing(NamedTuple):
    """A record to be sent. ``strays``: partition and timestamp (ms) of living copies where the key does not belong."""

    key: bytes
    value: bytes | None
    headers: Headers | None = None
    strays: list[tuple[int, int]] | None = None


@dataclass(slots=True)
class Tally:
    """The keys that a task has seen, in numbers and some examples. Adds up."""

    counts: dict[str, int] = field(default_factory=dict)
    present: int = 0
    """Keys that live in the topic before the load."""
    problems: int = 0
    """Rows of which no record can be made."""
    collisions: int = 0
    """Rows whose record key another row has as well."""
    reasons: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def loads(cls, text: str) -> Self:
        """The reverse of :meth:`dumps`."""
        return cls(**orjson.loads(text))

    def dumps(self) -> str:
        """As JSON."""
        return orjson.dumps(asdict(self)).decode()

    def add(self, other: Tally) -> None:
        """Take in another task's."""
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.present += other.present
        self.problems += other.problems
        self.collisions += other.collisions
        self.reasons = [*self.reasons, *other.reasons][:_SHOWN]
        self.twice = [*self.twice, *other.twice][:_SHOWN]
        for name, found in other.samples.items():
            self.samples[name] = [*self.samples.get(name, ()), *found][:_SHOWN]

    def changes(self) -> dict[Change, int]:
        """The numbers of keys by what becomes of them."""
        return {change: self.counts.get(change.value, 0) for change in Change}

    def sampled(self) -> dict[Change, list[Sample]]:
        """Some keys of each change."""
        return {Change(name): [Sample(**found) for found in shown] for name, shown in self.samples.items()}

    def count(self, change: Change, keys: int) -> None:
        """Count keys."""
        self.counts[change.value] = self.counts.get(change.value, 0) + keys

    def see(self, change: Change, key: bytes, before: bytes | None, after: bytes | None) -> None:
        """Count a key, and keep it as an example where there are few."""
        self.count(change, 1)
        shown = self.samples.setdefault(change.value, [])
        if len(shown) < _SHOWN and change is not Change.UNCHANGED:
            shown.append({"before": _shown(key, before), "after": _shown(key, after)})


def living(directory: Directory[Any]) -> Callable[[bytes | None], bool]:
    """Whether a value is an entry for readers; one that they can't read is not known to be deleted."""
    if directory.active is None:
        return lambda value: value is not None
    read, active = document_reader(directory.envelope), field_reader(directory.active)

    def lives(value: bytes | None) -> bool:
        if value is None:
            return False
        try:
            entry = read(value)
        except ValueError:
            return True
        return entry is not None and active(entry) is not False

    return lives


def change_of(before: bytes | None, after: bytes | None, lives: Callable[[bytes | None], bool]) -> Change:
    """The change of a key by a record; None is a tombstone, or nothing."""
    if before == after:
        return Change.UNCHANGED
    if not lives(after) and lives(before):
        return Change.DEACTIVATE
    return Change.INSERT if before is None else Change.UPDATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Decides key by key. ``partitions``: of the topic, where a key says to which one it belongs; else None.

    Takes batches of ``key, made, value, headers, problem, before, copies, spared``: a full join by the key, in which
    equal keys follow each other. ``made``: the load has it; ``spared``: the load must not remove it.
    """

    directory: Directory[Any]
    mode: Mode
    partitions: int | None

    def __call__(self, batches: Batches) -> Batches:
        """The function of a task."""
        tally, lives = Tally(), living(self.directory)
        pack: list[Outgoing] = []
        size, last = 0, None
        for batch in batches:
            rest = self._without_unchanged(tally, lives, batch, last)
            for row in zip(*(column.to_pylist() for column in rest.columns), strict=True):
                outgoing = self._judge(tally, lives, row, again=row[0] is not None and row[0] == last)
                last = row[0]
                if outgoing is None:
                    continue
                pack.append(outgoing)
                size += len(outgoing.key) + len(outgoing.value or b"")
                if size > _PACK:
                    yield _given(None, pack)
                    pack, size = [], 0
            last = batch.column(0)[-1].as_py() if batch.num_rows else last
        if pack:
            yield _given(None, pack)
        yield _given(tally, [])

    def _without_unchanged(
        self, tally: Tally, lives: Callable[[bytes | None], bool], batch: pa.RecordBatch, last: bytes | None
    ) -> pa.RecordBatch:
        """The rows to look at one by one; most of a load that was done before are not."""
        keys = batch.column(0)
        if batch.num_rows and (keys[0].as_py() == last or _compute.any(_compute.equal(keys[1:], keys[:-1])).as_py()):
            return batch
        same = _compute.fill_null(_compute.equal(batch.column(2), batch.column(5)), False)
        count = _compute.sum(same).as_py() or 0
        if not count:
            return batch
        tally.count(Change.UNCHANGED, count)
        if self.directory.active is None:
            tally.present += count
        else:
            tally.present += sum(map(lives, batch.column(5).filter(same).to_pylist()))
        return batch.filter(_compute.invert(same))

    def _judge(
        self, tally: Tally, lives: Callable[[bytes | None], bool], row: tuple[Any, ...], *, again: bool
    ) -> Outgoing | None:
        key, made, after, headers, problem, before, copies, spared = row
        if problem is not None:
            tally.problems += 1
            tally.reasons = [*tally.reasons, problem][:_SHOWN]
            return None
        if again:
            tally.collisions += 1
            tally.twice = [*tally.twice, key.decode(errors="replace")][:_SHOWN]
            return None
        lived = lives(before)
        tally.present += lived
        if not made and (spared or not lived or self.mode is not Mode.REPLACE):
            return None
        change = change_of(before, after, lives)
        tally.see(change, key, before, after)
        if change is Change.UNCHANGED:
            return None
        return Outgoing(key, after, _pairs(headers), self._strays(key, copies))

    def _strays(self, key: bytes, copies: list[dict[str, int]] | None) -> list[tuple[int, int]] | None:
        count = self.partitions
        if not copies or count is None or count < 2:
            return None
        home = partition_of(key, count)
        return [_place(copy) for copy in copies if copy["partition"] != home] or None


def unpacked(pack: bytes) -> Iterator[Outgoing]:
    """The records of a pack."""
    for batch in pa.ipc.open_stream(pack):
        for key, value, headers, strays in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield Outgoing(key, value, _pairs(headers), strays and [_place(copy) for copy in strays])


def _pairs(headers: list[dict[str, Any]] | None) -> Headers | None:
    return None if headers is None else [(header["name"], header["value"]) for header in headers]


def _place(copy: dict[str, int]) -> tuple[int, int]:
    return copy["partition"], copy["timestamp_ms"]


def _given(tally: Tally | None, records: list[Outgoing]) -> pa.RecordBatch:
    row = (tally.dumps() if tally is not None else None, _packed(records) if records else None)
    return of_rows([row], CHANGES)


def _packed(records: list[Outgoing]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _PACKED) as stream:
        stream.write_batch(of_rows(records, _PACKED))
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _shown(key: bytes, value: bytes | None) -> Mapping[str, Any] | None:
    """A record for people: JSON as such, else as text."""
    if value is None:
        return None
    try:
        read = orjson.loads(value)
    except orjson.JSONDecodeError:
        read = value.decode(errors="replace")
    return {"key": key.decode(errors="replace"), "value": read}
