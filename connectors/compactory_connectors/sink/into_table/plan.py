"""Plans: the rows of a table for records of one shape. A plan maps fields to columns, and values to texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter, itemgetter, methodcaller
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

from psycopg import sql

from compactory_connectors.connect.converters.decoders import Decoded
from compactory_connectors.connect.record.schema import Schema, Type

from ..record import RecordRefused, SinkRecord
from .sink_config import SinkConfig
from .statements import delete, merge
from .target import Target, Texts, is_identifier, texts_of

__all__ = [
    "NOT_FITTING",
    "ColumnSource",
    "DecodedRecord",
    "Plan",
    "Row",
    "RowCollector",
    "Write",
    "columns_of",
    "plan_of",
]

Row: TypeAlias = tuple[Any, str]
"""The texts of the primary key, and the line that COPY takes."""


class DecodedRecord(NamedTuple):
    """A decoded record. The topic names the table. Without a schema, values are those of JSON."""

    topic: str
    key: Decoded | None
    value: Decoded | None


class ColumnSource(NamedTuple):
    """The source of a column's value. ``get`` reads it from ``half``: the record, its key or its value."""

    half: str
    get: Callable[[Any], Any]
    schema: Schema | None


NOT_FITTING = (TypeError, ValueError, AttributeError, KeyError, OverflowError)
"""The errors of a value that does not fit its schema or its column."""

_KAFKA = ("__connect_topic", "__connect_partition", "__connect_offset")
_PLACES = tuple(
    ColumnSource("record", attrgetter(name), Schema(type=kind))
    for name, kind in (("topic", Type.STRING), ("partition", Type.INT32), ("offset", Type.INT64))
)


def columns_of(config: SinkConfig, record: DecodedRecord) -> tuple[dict[str, ColumnSource], tuple[str, ...]]:
    """Return the columns of a record, those of the primary key first, and the key's names. Raises RecordRefused."""
    if record.value is None and not config.delete_enabled:
        raise RecordRefused("is a tombstone, and delete.enabled is false")
    sources: dict[str, ColumnSource] = {}
    fields = {} if record.value is None else _fields(record.value, "value")
    if config.pk_mode == "record_key":
        sources = _key_columns(config, record.key)
    elif config.pk_mode == "record_value":
        sources = _named(config, fields, "value")
    elif config.pk_mode == "kafka":
        sources = dict(zip(config.pk_fields or _KAFKA, _PLACES, strict=True))
    primary = tuple(sources)
    for name, source in fields.items():
        if name not in sources and (not config.fields_whitelist or name in config.fields_whitelist):
            sources[name] = source
    if not sources:
        raise RecordRefused("has no field to write")
    for name in sources:
        if not is_identifier(name):
            raise RecordRefused(
                f"field {name[:63]!r} can not be a column, whose name has 1 to 63 bytes and no NUL: leave it out by"
                " fields.whitelist, or rename it where it is written"
            )
    return sources, primary


def _key_columns(config: SinkConfig, key: Decoded | None) -> dict[str, ColumnSource]:
    if key is None:
        raise RecordRefused("has no key, and pk.mode is record_key")
    if isinstance(key.value, dict):
        return _named(config, _fields(key, "key"), "key")
    if len(config.pk_fields) != 1:
        raise RecordRefused("its key is one value: name the column in pk.fields")
    return {config.pk_fields[0]: ColumnSource("key", lambda value: value, key.schema)}


def _named(config: SinkConfig, fields: dict[str, ColumnSource], half: str) -> dict[str, ColumnSource]:
    for name in config.pk_fields:
        if name not in fields:
            raise RecordRefused(f"the {half} has no field {name!r}, which pk.fields names")
    return {name: fields[name] for name in config.pk_fields or fields}


def _fields(decoded: Decoded, half: str) -> dict[str, ColumnSource]:
    schema, value = decoded
    if schema is not None and schema.type is Type.STRUCT:
        if not isinstance(value, dict):
            raise RecordRefused(f"its {half} does not fit its schema")
        return {item.name: ColumnSource(half, methodcaller("get", item.name), item.schema) for item in schema.fields}
    if not isinstance(value, dict):
        raise RecordRefused(f"its {half} is no struct of fields")
    return {name: ColumnSource(half, itemgetter(name), None) for name in value}


@dataclass(slots=True, eq=False)
class Plan:
    """The way to write records of one shape. ``columns`` begin with ``key``, the primary key. ``deletes``: tombstones.

    ``copies``: rows may be copied into the table itself. Postgres has ``refused`` that so often; ``pause``: the number
    of writes until the next attempt.
    """

    target: Target
    columns: tuple[str, ...]
    key: tuple[str, ...]
    deletes: bool
    copies: bool
    statement: sql.Composed
    """Merges rows from ``staged``."""
    sources: tuple[tuple[ColumnSource, Texts], ...]
    pause: int = 0
    refused: int = 0

    def rows(
        self, records: Sequence[SinkRecord], keys: Sequence[Any], values: Sequence[Any]
    ) -> tuple[list[Row], dict[int, str]]:
        """Return the rows of records, and the reasons of refused records by index.

        Works column by column, so that C code does nearly all of the work.
        """
        halves: dict[str, Sequence[Any]] = {"record": records, "key": keys, "value": values}
        refused: dict[int, str] = {}
        columns = []
        for name, (source, texts) in zip(self.columns, self.sources, strict=True):
            texts_of_column, unfit = _column(halves[source.half], source.get, texts)
            columns.append(texts_of_column)
            kind = self.target.columns[name].kind
            refused |= dict.fromkeys(unfit, f"column {name} of type {kind}: the value does not fit")
        lines = map("\t".join, zip(*columns, strict=True))
        key = columns[: len(self.key)] or columns[:1]  # rows without a key are only inserted
        key_texts: Iterable[Any] = key[0] if len(key) == 1 else zip(*key, strict=True)
        return list(zip(key_texts, lines, strict=True)), refused


def _column(halves: Sequence[Any], get: Callable[[Any], Any], texts: Texts) -> tuple[list[str], list[int]]:
    """Return the texts of one column for COPY, and the indexes of values that do not fit."""
    try:
        plain = list(map(get, halves))
        if {texts.plain, NoneType}.issuperset(map(type, plain)):
            if texts.plain is not str:
                plain = [item if item is None else str(item) for item in plain]
            return _escaped(plain), []
    except NOT_FITTING:
        pass
    column: list[str | None] = []
    unfit = []
    for number, half in enumerate(halves):
        try:
            value = get(half)
            column.append(None if value is None else texts.text(value))
        except NOT_FITTING:
            column.append(None)
            unfit.append(number)
    return _escaped(column), unfit


def _escaped(texts: Sequence[str | None]) -> list[str]:
    whole = "".join(filter(None, texts))
    if any(mark in whole for mark in "\\\t\n\r"):
        texts = [text and text.translate(_ESCAPES) for text in texts]
    return [r"\N" if text is None else text for text in texts]


_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def plan_of(
    mode: str, target: Target, sources: dict[str, ColumnSource], key: tuple[str, ...], *, deletes: bool
) -> Plan:
    """Return the plan. All columns must be in the table. Raises RecordRefused."""
    columns = tuple(sources)
    statement = delete(target, key) if deletes else merge(mode, target, columns, key)
    copies = mode == "upsert" and not deletes and all(target.columns[name].generated != "stored" for name in columns)
    texts = tuple((source, texts_of(source.schema, target.columns[name])) for name, source in sources.items())
    return Plan(target, columns, key, deletes, copies, statement, texts)


class Write(NamedTuple):
    """Rows of one plan that are written together."""

    plan: Plan
    lines: list[str]


class RowCollector:
    """Collects the rows of a batch by plan. Keeps the newest row of a key if the mode allows it.

    Starts another write if the order of rows requires it.
    """

    def __init__(self, mode: str) -> None:
        self._inserts = mode == "insert"
        self._numbers = count()
        self._writes: list[Write] = []
        self._rows: dict[Plan, dict[Any, str]] = defaultdict(dict)
        self._deleted: dict[Plan, dict[Any, str]] = defaultdict(dict)

    def add(self, plan: Plan, rows: Sequence[Row]) -> None:
        """Add rows of a plan, later than all rows that were added before."""
        same_table = {item: lines for item, lines in self._rows.items() if item.target.text == plan.target.text}
        if plan.deletes:
            if self._inserts and same_table:
                self._flush()
            for lines in same_table.values():
                for key, _ in rows:
                    lines.pop(key, None)
            self._deleted[plan].update(rows)
        elif self._inserts:
            self._rows[plan].update((next(self._numbers), line) for _, line in rows)
        else:
            other_columns = [lines for item, lines in same_table.items() if item is not plan]
            if not all(lines.keys().isdisjoint(key for key, _ in rows) for lines in other_columns):
                self._flush()  # an older row with other columns must be written first
            self._rows[plan].update(rows)

    def writes(self) -> list[Write]:
        self._flush()
        return self._writes

    def _flush(self) -> None:
        for plan, lines in (*self._deleted.items(), *self._rows.items()):
            if lines:
                self._writes.append(Write(plan, [*lines.values()]))
        self._rows.clear()
        self._deleted.clear()
