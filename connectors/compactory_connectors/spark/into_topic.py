"""A load into a topic: rows become JSON records, and those that differ from the topic's newest are sent.

Executors make the records, compare and send them: to Kafka, or to a server of a directory mastered in Kafka. Readers
see a load bit by bit. A load that ends early is run again: it sends what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from compactory.codec.encoding import RecordEncoder
from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError, WriteRefused
from compactory.kafka.client import Kafka
from compactory.write.destination import Destination

from .column_types import parse_type
from .datasource.topic_writer import refuse_mastered, refuse_owned
from .identifier import quoted
from .record_batch import Batches, Task, in_arrow, of_columns, of_rows
from .registration import register
from .target import Change, Differences, DirectoryServer, Mode, Received, Sample, TargetColumn, Written
from .topic.entries import entry_test, kafka_options, newest_values
from .typed.json_objects import KEY, JsonRow, JsonRows

__all__ = ["KafkaTarget"]

_JSON_TYPES: Final = {"json", "jsonb"}
_EXAMPLES: Final = 5
_Record: TypeAlias = tuple[bytes | None, bytes | None, str | None]
"""Key, value, and why no record can be made."""
_RECORDS: Final = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("problem", pa.string())])
_COMPARED: Final = pa.schema(
    [
        *(("key", pa.binary()), ("before", pa.binary()), ("after", pa.binary()), ("made", pa.bool_())),
        *(("kept", pa.bool_()), ("was", pa.bool_()), ("will", pa.bool_()), ("same", pa.bool_())),
    ]
)
"""A key's records before and after the load. ``made``: the load has it; ``kept``: it stays if the load lacks it;
``was`` and ``will``: it is an entry; ``same``: a write would change nothing.
"""


class KafkaTarget:
    """The topic of a directory; see :class:`target.Target`. ``types`` and ``key`` are those of the load's rules.

    ``server`` writes a directory mastered in Kafka, each row once under ``load_id``.
    """

    def __init__(
        self,
        *,
        spark: SparkSession,
        kafka: Kafka,
        directory: Directory[Any],
        types: Mapping[str, str],
        key: Sequence[str] = (),
        server: DirectoryServer | None = None,
        load_id: str | None = None,
    ) -> None:
        if directory.rules is not None and server is None:
            raise ConfigError(f"directory {directory.name!r}: is mastered in Kafka: name a server that writes it")
        self._server, self._load_id = server, load_id
        self._spark = spark
        self._kafka = kafka
        self._directory = directory
        self._types = types
        self._key = _key_column(directory, types, key)
        self._key_text = f"CAST({quoted(self._key)} AS STRING)"
        self._changes: DataFrame | None = None
        self._counts: Mapping[Change, int] = {}

    @property
    def label(self) -> str:
        return f"topic {self._directory.topic}"

    @property
    def columns(self) -> Sequence[TargetColumn]:
        """The fields of the topic's records; a load fills all. Raises ConfigError if others write the topic."""
        refuse_owned(self._kafka, self._directory.topic)
        if self._server is None:
            refuse_mastered(self._kafka, self._directory.topic)
        return [TargetColumn(name=name, type=kind, nullable=name != self._key) for name, kind in self._types.items()]

    @property
    def key(self) -> Sequence[str]:
        return (self._key,)

    def repeated(self) -> None:
        """Return None: a topic keeps no ids of loads."""

    def receive(self, rows: DataFrame, mode: Mode) -> Received | None:  # noqa: ARG002 (those of Target)
        """Return None: only a comparison tells what a topic needs of these rows."""
        return None

    def compare(self, rows: DataFrame, mode: Mode, spared: DataFrame | None = None) -> Differences:
        """Compare records of these rows with the topic's newest; see :class:`target.Target`.

        Raises ConfigError, Unreachable, and CompactoryError for rows that no record can be made of.
        """
        Destination(self._kafka, self._directory.topic).prepare(10.0, create=False)
        columns = [*map(quoted, self._types), f"{self._key_text} AS {KEY}"]
        fields = rows.selectExpr(*columns)
        documents = [name for name, kind in self._types.items() if parse_type(kind).name in _JSON_TYPES]
        json_rows = JsonRows.of(fields.schema, keeps_nulls=self._server is None, json_columns=documents)
        made = in_arrow(fields, _RecordMaker(self._directory, json_rows), _RECORDS).persist()
        try:
            self._refuse(made)
            self._changes = self._compared(made, mode, spared).persist()
            counts = {
                Change(row["change"]): row["count"]
                for row in self._changes.groupBy("change").count().collect()
                if row["change"] is not None
            }
            present = self._changes.where("was").count()
        finally:
            made.unpersist()
        self._counts = {change: counts.get(change, 0) for change in Change}
        return Differences(counts=self._counts, present=present, samples=self._samples(self._changes))

    def write(self) -> Written:
        """Send the records that differ, by the tasks. Raises ConfigError, Unreachable; then load again."""
        assert self._changes is not None, "compare comes first"
        register(self._spark)
        changed = self._changes.where("change <> 'unchanged'").selectExpr("key", "after AS value")
        changed.write.format("compactory").mode("append").options(raw="true", **self._destination()).save()
        return Written(counts=self._counts)

    def _destination(self) -> dict[str, str]:
        """Return the options of the format that say where records go."""
        if self._server is None:
            return kafka_options(self._kafka) | {"topic": self._directory.topic}
        options = {"directory": self._directory.name, "url": self._server.url}
        optional = {"token": self._server.token, "loadId": self._load_id}
        return options | {name: value for name, value in optional.items() if value is not None}

    def close(self) -> None:
        if self._changes is not None:
            self._changes.unpersist()
            self._changes = None

    def _compared(self, made: DataFrame, mode: Mode, spared: DataFrame | None) -> DataFrame:
        """Return ``key, before, after, was, will, change``, each key once; ``change`` None: the key stays as it is."""
        newest = newest_values(self._spark, self._kafka, self._directory.topic).selectExpr("key", "value AS before")
        joined = made.selectExpr("key", "value AS after", "true AS made").join(newest, "key", "full_outer")
        kept = f.lit(mode is Mode.UPSERT)
        if spared is not None and mode is Mode.REPLACE:
            keys = spared.selectExpr(f"CAST({self._key_text} AS BINARY) AS key").dropna().distinct()
            joined, kept = joined.join(keys.withColumn("kept", f.lit(True)), "key", "left"), f.col("kept").isNotNull()
        columns = ("key", "before", "after", f.col("made").isNotNull().alias("made"), kept.alias("kept"))
        rules = self._directory.rules
        is_same = _equal if rules is None else partial(_equal_documents, rules.internal)
        judged = in_arrow(joined.select(*columns), _entries_marked(entry_test(self._directory), is_same), _COMPARED)
        change = (
            f.when(~f.col("made") & (f.col("kept") | ~f.col("was")), None)
            .when(f.col("same"), Change.UNCHANGED.value)
            .when(f.col("was") & ~f.col("will"), Change.DEACTIVATE.value)
            .when(f.col("before").isNull(), Change.INSERT.value)
            .otherwise(Change.UPDATE.value)
        )
        return judged.withColumn("change", change)

    def _refuse(self, made: DataFrame) -> None:
        faulty = made.where("problem IS NOT NULL")
        problems = [row["problem"] for row in faulty.limit(_EXAMPLES).collect()]
        if problems:
            count, reasons = faulty.count(), "; ".join(dict.fromkeys(problems))
            raise CompactoryError(f"{self.label}: no record can be made of {count:,} rows: {reasons}")
        repeated = made.groupBy("key").count().where("count > 1").limit(_EXAMPLES).collect()
        if repeated:
            keys = ", ".join(bytes(row["key"]).decode(errors="replace") for row in repeated)
            raise CompactoryError(f"{self.label}: several rows have the record key {keys}: give the rules a unique key")

    @staticmethod
    def _samples(changes: DataFrame) -> dict[Change, list[Sample]]:
        samples: dict[Change, list[Sample]] = {}
        for change in (Change.INSERT, Change.UPDATE, Change.DEACTIVATE):
            rows = changes.where(f.col("change") == change.value).limit(_EXAMPLES).collect()
            samples[change] = [
                Sample(before=_shown(row["key"], row["before"]), after=_shown(row["key"], row["after"])) for row in rows
            ]
        return samples


@dataclass(frozen=True, slots=True)
class _RecordMaker:
    """Makes records of rows, in the tasks."""

    directory: Directory[Any]
    rows: JsonRows

    def __call__(self, batches: Batches) -> Batches:
        """Make the records of a partition."""
        encoder = RecordEncoder(self.directory)
        for batch in batches:
            try:
                records = [self._record(encoder, row) for row in self.rows.rows([batch])]
            except WriteRefused:  # a row can't be converted: find it
                records = [self._only_record(encoder, batch.slice(number, 1)) for number in range(batch.num_rows)]
            yield of_rows(records, _RECORDS)

    def _only_record(self, encoder: RecordEncoder[Any], batch: pa.RecordBatch) -> _Record:
        try:
            return self._record(encoder, next(self.rows.rows([batch])))
        except WriteRefused as error:
            return None, None, str(error)

    @staticmethod
    def _record(encoder: RecordEncoder[Any], row: JsonRow) -> _Record:
        try:
            return (*encoder.record(row.key or "", row.value), None)
        except WriteRefused as error:
            return None, None, str(error)


def _equal(before: bytes | None, after: bytes | None) -> bool:
    return before == after


def _equal_documents(internal: Sequence[str], before: bytes | None, after: bytes | None) -> bool:
    """Return True if a PUT would store this document again: it keeps ``internal`` fields that it does not name."""
    if before is None or after is None:
        return before is after
    try:
        stored = orjson.loads(before)
    except orjson.JSONDecodeError:
        return False
    document = orjson.loads(after)
    visible = {name: value for name, value in stored.items() if name in document or name not in internal}
    return orjson.dumps(visible, option=orjson.OPT_SORT_KEYS) == orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _entries_marked(is_entry: Callable[[bytes | None], bool], is_same: Callable[..., bool]) -> Task:
    """Return the task that adds whether a key's records are entries, and are the same."""

    def mark(batches: Batches) -> Batches:
        for batch in batches:
            records = [batch.column(name).to_pylist() for name in ("before", "after")]
            flags = [[*map(is_entry, values)] for values in records]
            yield of_columns([*batch.columns, *flags, [*map(is_same, *records)]], _COMPARED)

    return mark


def _key_column(directory: Directory[Any], types: Mapping[str, str], key: Sequence[str]) -> str:
    """Return the column of the record's key. Raises ConfigError where the directory can't be loaded by these rules."""
    name = f"directory {directory.name!r}"
    if not types:
        raise ConfigError(f"{name}: has no connector, so list its columns in the rules")
    columns = [directory.key] if directory.key is not None else list(key)
    if len(columns) != 1:
        raise ConfigError(
            f"{name}: the key of a record is one column, and the rules' key is {', '.join(columns) or 'none'}"
        )
    if columns[0] not in types:
        raise ConfigError(
            f"{name}: its key is the field {columns[0]!r}, which is none of the columns: {', '.join(types)}"
        )
    if directory.envelope != "none":
        raise ConfigError(f"{name}: has envelope={directory.envelope!r}: only their producer writes it")
    return columns[0]


def _shown(key: bytes, value: bytes | None) -> Mapping[str, Any] | None:
    """Return a record for people: JSON as such, other values as text."""
    if value is None:
        return None
    try:
        document = orjson.loads(bytes(value))
    except orjson.JSONDecodeError:
        document = bytes(value).decode(errors="replace")
    return {"key": bytes(key).decode(errors="replace"), "value": document}
