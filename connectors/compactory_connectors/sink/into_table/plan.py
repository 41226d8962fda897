"""How records of one shape become rows of one table: which field goes to which column, and as which text."""

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
from .chain import Change
from .sink_config import SinkConfig
from .statements import delete, merge
from .target import Target, Texts, is_identifier, texts_of

__all__ = ["NOT_FITTING", "Gathering", "Plan", "Row", "Wanted", "Write", "columns_of", "plan_of"]

Row: TypeAlias = tuple[Any, str]
"""The texts of the primary key, and the line that COPY takes."""


class Wanted(NamedTuple):
    """Where a column's value comes from: ``get`` takes it from a record and its change."""

    half: str
    get: Callable[[Any], Any]
    schema: Schema | None


NOT_FITTING = (TypeError, ValueError, AttributeError, KeyError, OverflowError)
"""The errors of a value that does not fit its schema or its column."""

_KAFKA = ("__connect_topic", "__connect_partition", "__connect_offset")
_PLACES = tuple(
    Wanted("record", attrgetter(name), Schema(type=kind))
    for name, kind in (("topic", Type.STRING), ("partition", Type.INT32), ("offset", Type.INT64))
)


def columns_of(config: SinkConfig, change: Change) -> tuple[dict[str, Wanted], tuple[str, ...]]:
    """The columns that a record has something for, those of the primary key first. Raises RecordRefused."""
    if change.value is None and not config.delete_enabled:
        raise RecordRefused("is a tombstone, and delete.enabled is false")
    wanted: dict[str, Wanted] = {}
    fields = {} if change.value is None else _fields(change.value, "value")
    if config.pk_mode == "record_key":
        wanted = _key_columns(config, change.key)
    elif config.pk_mode == "record_value":
        wanted = _named(config, fields, "value")
    elif config.pk_mode == "kafka":
        wanted = dict(zip(config.pk_fields or _KAFKA, _PLACES, strict=True))
    primary = tuple(wanted)
    for name, source in fields.items():
        if name not in wanted and (not config.fields_whitelist or name in config.fields_whitelist):
            wanted[name] = source
    if not wanted:
        raise RecordRefused("has no field to write")
    for name in wanted:
        if not is_identifier(name):
            raise RecordRefused(
                f"field {name[:63]!r} can not be a column, whose name has 1 to 63 bytes and no NUL: leave it out by"
                " fields.whitelist, or rename it by a transform"
            )
    return wanted, primary


def _key_columns(config: SinkConfig, key: Decoded | None) -> dict[str, Wanted]:
    if key is None:
        raise RecordRefused("has no key, and pk.mode is record_key")
    if isinstance(key.value, dict):
        return _named(config, _fields(key, "key"), "key")
    if len(config.pk_fields) != 1:
        raise RecordRefused("its key is one value: name the column in pk.fields")
    return {config.pk_fields[0]: Wanted("key", lambda value: value, key.schema)}


def _named(config: SinkConfig, fields: dict[str, Wanted], half: str) -> dict[str, Wanted]:
    for name in config.pk_fields:
        if name not in fields:
            raise RecordRefused(f"the {half} has no field {name!r}, which pk.fields names")
    return {name: fields[name] for name in config.pk_fields or fields}


def _fields(decoded: Decoded, half: str) -> dict[str, Wanted]:
    schema, value = decoded
    if schema is not None and schema.type is Type.STRUCT:
        if not isinstance(value, dict):
            raise RecordRefused(f"its {half} does not fit its schema")
        return {item.name: Wanted(half, methodcaller("get", item.name), item.schema) for item in schema.fields}
    if not isinstance(value, dict):
        raise RecordRefused(f"its {half} is no struct of fields")
    return {name: Wanted(half, itemgetter(name), None) for name in value}


@dataclass(slots=True, eq=False)
class Plan:
    """``columns`` begin with ``key``, those of the primary key. ``deletes``: records of this shape are tombstones.

    ``copies``: rows may be copied into the table itself. It was ``refused`` so often; ``pause`` writes go without.
    """

    target: Target
    columns: tuple[str, ...]
    key: tuple[str, ...]
    deletes: bool
    copies: bool
    statement: sql.Composed
    """Merges rows from ``staged``."""
    sources: tuple[tuple[Wanted, Texts], ...]
    pause: int = 0
    refused: int = 0

    def rows(
        self, records: Sequence[SinkRecord], keys: Sequence[Any], values: Sequence[Any]
    ) -> tuple[list[Row], dict[int, str]]:
        """Rows of records, their keys and values; by their places the reasons why some can have none.

        It goes column by column, so that nearly all of the work is done by C.
        """
        halves: dict[str, Sequence[Any]] = {"record": records, "key": keys, "value": values}
        refused: dict[int, str] = {}
        columns = []
        for name, (wanted, texts) in zip(self.columns, self.sources, strict=True):
            found, unfit = _column(halves[wanted.half], wanted.get, texts)
            columns.append(found)
            kind = self.target.columns[name].kind
            refused |= dict.fromkeys(unfit, f"column {name} of type {kind}: the value does not fit")
        lines = map("\t".join, zip(*columns, strict=True))
        key = columns[: len(self.key)] or columns[:1]  # one without a key is only inserted
        places: Iterable[Any] = key[0] if len(key) == 1 else zip(*key, strict=True)
        return list(zip(places, lines, strict=True)), refused


def _column(halves: Sequence[Any], get: Callable[[Any], Any], texts: Texts) -> tuple[list[str], list[int]]:
    """The texts of one column for COPY, and the places of values that do not fit."""
    try:
        plain = list(map(get, halves))
        if {texts.plain, NoneType}.issuperset(map(type, plain)):
            if texts.plain is not str:
                plain = [item if item is None else str(item) for item in plain]
            return _escaped(plain), []
    except NOT_FITTING:
        pass
    found: list[str | None] = []
    unfit = []
    for number, half in enumerate(halves):
        try:
            value = get(half)
            found.append(None if value is None else texts.text(value))
        except NOT_FITTING:
            found.append(None)
            unfit.append(number)
    return _escaped(found), unfit


def _escaped(texts: Sequence[str | None]) -> list[str]:
    whole = "".join(filter(None, texts))
    if any(mark in whole for mark in "\\\t\n\r"):
        texts = [text and text.translate(_ESCAPES) for text in texts]
    return [r"\N" if text is None else text for text in texts]


_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def plan_of(mode: str, target: Target, wanted: dict[str, Wanted], key: tuple[str, ...], *, deletes: bool) -> Plan:
    """The plan. All columns must be in the table. Raises RecordRefused."""
    columns = tuple(wanted)
    statement = delete(target, key) if deletes else merge(mode, target, columns, key)
    copies = mode == "upsert" and not deletes and all(target.columns[name].made != "stored" for name in columns)
    sources = tuple((source, texts_of(source.schema, target.columns[name])) for name, source in wanted.items())
    return Plan(target, columns, key, deletes, copies, statement, sources)


class Write(NamedTuple):
    """Rows that are written at once."""

    plan: Plan
    lines: list[str]


class Gathering:
    """Rows of one call by plan, newest first where the mode allows it; a further write where order asks for it."""

    def __init__(self, mode: str) -> None:
        self._inserts = mode == "insert"
        self._numbers = count()
        self._writes: list[Write] = []
        self._rows: dict[Plan, dict[Any, str]] = defaultdict(dict)
        self._deleted: dict[Plan, dict[Any, str]] = defaultdict(dict)

    def take(self, plan: Plan, rows: Sequence[Row]) -> None:
        """Rows of one plan, which come behind all that were taken before."""
        others = [(other, its) for other, its in self._rows.items() if other.target.text == plan.target.text]
        if plan.deletes:
            if self._inserts and others:
                self._flush()
            for _, its in others:
                for place, _ in rows:
                    its.pop(place, None)
            self._deleted[plan].update(rows)
        elif self._inserts:
            self._rows[plan].update((next(self._numbers), line) for _, line in rows)
        else:
            if not all(its.keys().isdisjoint(place for place, _ in rows) for other, its in others if other is not plan):
                self._flush()  # an older row of other columns has to be there first
            self._rows[plan].update(rows)

    def writes(self) -> list[Write]:
        """All of them, in order."""
        self._flush()
        return self._writes

    def _flush(self) -> None:
        for plan, lines in (*self._deleted.items(), *self._rows.items()):
            if lines:
                self._writes.append(Write(plan, [*lines.values()]))
        self._rows.clear()
        self._deleted.clear()
