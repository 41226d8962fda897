"""Every key of tables and their topic judged on Spark, in place of the one thread that does it otherwise.

The four steps of decision 0020 are in the same order: whoever calls has noted the topic's ends and the stored offset;
the rows of each table are read in one snapshot, and only then is the topic read to its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from compactory.kafka.client import Kafka
from compactory.lookup.digest import Digester, DirectoryDigest, range_of, record_digest
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.reconcile.checker import Finding, Row, Rules, Stored, check
from compactory_connectors.source.reconcile.comparison import DIGESTED, Tally
from compactory_connectors.source.reconcile.outcome import Digests
from compactory_connectors.source.reconcile.progress import Progress, untold
from compactory_connectors.source.reconcile.table_side import Look

from ..record_batch import Batches, Task, of_columns, of_rows
from ..topic.frame import capture, latest
from .digest_rows import digest_of, digest_rows
from .table_rows import expected_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TablePass"]

_VERDICTS: Final = "what string, number bigint, count bigint, high binary, low binary"
_SCHEMA: Final = pa.schema(
    [
        ("what", pa.string()),
        ("number", pa.int64()),
        ("count", pa.int64()),
        ("high", pa.binary()),
        ("low", pa.binary()),
    ]
)
_TABLE, _TOPIC, _EXPECTED, _STORED, _COUNTED = "table", "topic", "expected", "stored", "counted "

Records = list[tuple[str, int, int, bytes, bytes]]


class TablePass:
    """Judges one topic after the other; an :class:`Overall` of the verifier. Owned by one thread."""

    def __init__(
        self,
        spark: SparkSession,
        connector: ConnectorConfig,
        kafka: Kafka,
        progress: Progress = untold,
    ) -> None:
        self._spark = spark
        self._connector = connector
        self._kafka = kafka
        self._progress = progress

    def __call__(
        self, topic: str, marks: Mapping[int, int], looks: Iterator[tuple[int, Look]], rules: Rules, most: int
    ) -> Tally:
        """Judge every key by its numbers of `DIGESTED`; see the verifier."""
        rows: DataFrame | None = None
        for _, look in looks:
            self._progress(f"table {look.plan.qualified}", 0)
            found = expected_rows(self._spark, self._connector, look, topic)
            look.unreadable += [row[0] for row in found.where("key IS NULL").select("unreadable").take(5)]
            rows = found if rows is None else rows.unionByName(found)
        assert rows is not None
        self._progress(f"topic {topic}", 0)
        extent = capture(self._kafka, topic)
        stored = latest(self._spark, self._kafka, extent, tombstones=True).mapInArrow(_marked(marks), _STORED_COLUMNS)
        verdicts = _joined(rows, stored).mapInArrow(_judging(rules, most), _VERDICTS).collect()
        extent.check(self._kafka)
        return _tally(verdicts, most)


_STORED_COLUMNS: Final = "key binary, mark binary, late int"
_STORED_SCHEMA: Final = pa.schema([("key", pa.binary()), ("mark", pa.binary()), ("late", pa.int32())])


def _marked(marks: Mapping[int, int]) -> Task:
    """Records as what stands for them: their values stay where they are."""

    def task(batches: Batches) -> Batches:
        for batch in batches:
            keys, values, partitions, offsets = (batch.column(number).to_pylist() for number in range(4))
            flags = [
                (Stored.LATE if offset >= marks.get(partition, 0) else 0) | (Stored.TOMBSTONE if value is None else 0)
                for value, partition, offset in zip(values, partitions, offsets, strict=True)
            ]
            digests = [record_digest(key, value or b"") for key, value in zip(keys, values, strict=True)]
            yield of_columns((keys, digests, flags), _STORED_SCHEMA)

    return task


def _joined(rows: DataFrame, stored: DataFrame) -> DataFrame:
    """One row a key: what its rows in the tables stand for, and its newest record."""
    from pyspark.sql import functions as f

    wanted = rows.where("key IS NOT NULL").groupBy("key").agg(f.collect_list(f.struct("digest", "flags")).alias("rows"))
    return wanted.join(stored, "key", "full_outer").select("key", "rows", "mark", "late")


def _judging(rules: Rules, most: int) -> Task:
    def task(batches: Batches) -> Batches:
        judged = _Judged(rules, most)
        for batch in batches:
            for key, rows, mark, late in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                judged.take(key, [(row["digest"], row["flags"]) for row in rows or ()], mark, late)
        yield of_rows(judged.said(), _SCHEMA)

    return task


class _Judged:
    """What a task says of its keys. Owned by it."""

    def __init__(self, rules: Rules, most: int) -> None:
        self._rules = rules
        self._most = most
        self._table, self._topic = Digester(), Digester()
        self._counts: Counter[str] = Counter()
        self._suspects: list[tuple[int, Finding]] = []

    def take(self, key: bytes, rows: list[tuple[bytes, int]], mark: bytes | None, late: int | None) -> None:
        number = range_of(key)
        wanted = {digest for digest, flags in rows if not flags & (Row.ABSENT | Row.UNREADABLE)}
        for digest in wanted:
            self._table.count(number, digest)
        self._counts[_EXPECTED] += len(wanted)
        record = None if mark is None else (mark, late or 0)
        if record is not None and not record[1] & Stored.TOMBSTONE:
            self._topic.count(number, record[0])
            self._counts[_STORED] += 1
        finding = check(rows, record, self._rules)
        if finding is not Finding.EQUAL:
            self._counts[_COUNTED + finding.value] += 1
            if len(self._suspects) < self._most:
                self._suspects.append((DIGESTED.key(key), finding))

    def said(self) -> Records:
        """Digests by range, counts by name, and the keys that are not equal by their number."""
        found: Records = []
        for name, digester in ((_TABLE, self._table), (_TOPIC, self._topic)):
            found += [(name, *row) for row in digest_rows(digester)]
        found += [(name, 0, count, b"", b"") for name, count in self._counts.items()]
        return found + [(finding.value, number, 1, b"", b"") for number, finding in self._suspects]


def _tally(verdicts: list[Any], most: int) -> Tally:
    digests = {_TABLE: DirectoryDigest(), _TOPIC: DirectoryDigest()}
    tally = Tally(digests=Digests(table=digests[_TABLE], topic=digests[_TOPIC]))
    for what, number, count, high, low in verdicts:
        if what in digests:
            digests[what].add(number, digest_of(count, high, low))
        elif what == _EXPECTED:
            tally.expected += count
        elif what == _STORED:
            tally.stored += count
        elif what.startswith(_COUNTED):
            tally.findings[Finding(what.removeprefix(_COUNTED))] += count
        elif len(tally.suspects) < most:
            tally.suspects[number] = Finding(what)
    return tally
