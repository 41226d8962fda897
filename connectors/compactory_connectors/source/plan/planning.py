"""From a connector and the server's catalogue to the plans of its tables; problems are found before anything runs."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

import psycopg

from compactory.errors import ConfigError
from compactory_connectors.connect.setting import nearest
from compactory_connectors.database import Inspection, inspect
from compactory_connectors.database.postgres_errors import refusal
from compactory_sql.indexes import active_predicates

from ..config.connector import ConnectorConfig, SoftDelete
from ..config.selection import Relation
from ..postgres.rights import read_rights
from ..postgres.server import Server, statement
from .catalog import Index, Table, describe, describe_query, find_relations
from .chain import RowPlan, compile_plan
from .cursor_columns import CursorOf, cursor_of, reading_of
from .function_call import class_and_place
from .key_parts import key_type
from .row_order import instant_text
from .table_plan import Reading, TablePlan

__all__ = ["Plans", "find_plans", "plan_tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """The result of one look at the catalogue."""

    plans: tuple[TablePlan, ...] = ()
    chosen: tuple[str, ...] = ()
    """Names of all tables that the connector polls, planned or not."""
    problems: tuple[str, ...] = ()
    """Problems of the whole: names that no table has, names that several schemas have."""
    unfit: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Tables that can't be polled, each with all its problems."""
    locked: tuple[str, ...] = ()
    """Those of them that somebody has locked: nothing is wrong with them."""
    warnings: tuple[str, ...] = ()

    @property
    def all_problems(self) -> list[str]:
        """Problems of the whole and of each table."""
        return [*self.problems, *(problem for _, its in self.unfit for problem in its)]

    def sound(self) -> Plans:
        """These plans. Raises ConfigError with all problems."""
        if problems := self.all_problems:
            raise ConfigError(problems)
        return self


def plan_tables(server: Server, connector: ConnectorConfig) -> list[TablePlan]:
    """A plan per table, in the connector's order. Raises ConfigError with all problems, and psycopg.Error."""
    return list(find_plans(server, connector).sound().plans)


def find_plans(server: Server, connector: ConnectorConfig, known: Container[tuple[int, str]] = ()) -> Plans:
    """Plans of all tables that exist and fit, and the problems of the others.

    Tables whose oid and name are ``known`` are not looked at again. Raises psycopg.Error.
    """
    if connector.query is not None:
        return _of_query(server, connector)
    with server.connection.transaction():  # tables and their digests are of one snapshot
        server.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        relations = find_relations(server.connection)
        chosen = connector.selection.choose(relations)
        user = server.connection.info.user
        where = f"database {connector.connection.server} has no such table, or user {user} can't see it"
        problems = [*_catalog(server, connector), *connector.selection.missing(relations, where)]
        problems += connector.selection.clashes(chosen)
        plans: list[TablePlan] = []
        unfit: list[tuple[str, tuple[str, ...]]] = []
        locked: list[str] = []
        for relation in chosen:
            if (relation.oid, str(relation)) in known:
                continue
            try:
                with server.connection.transaction():  # a savepoint: a failure of one table leaves the others alone
                    plan = _plan(server, connector, relation)
            except ConfigError as error:
                unfit.append((str(relation), tuple(error.problems)))
            except psycopg.errors.LockNotAvailable:
                unfit.append((str(relation), (_locked(server, relation),)))
                locked.append(str(relation))
            except psycopg.Error as error:
                if server.connection.closed:
                    raise
                unfit.append((str(relation), (f"table {relation}: {refusal(error)}",)))
            except Exception as error:  # noqa: BLE001 - a mistake of ours about one table must not stop the others
                unfit.append((str(relation), (f"table {relation}: unexpected error: {class_and_place(error)}",)))
            else:
                plans += [plan] if plan is not None else []
    warnings = (*_partitions(chosen), *_dropped(plans), *_shared(plans))
    sent = tuple(plan for plan in plans if plan.rows.publishes)
    return Plans(
        plans=sent,
        chosen=tuple(map(str, chosen)),
        problems=tuple(problems),
        unfit=tuple(unfit),
        locked=tuple(locked),
        warnings=warnings,
    )


def _locked(server: Server, relation: Relation) -> str:
    by = "; ".join(server.lockers(relation.oid)) or "a transaction that has ended meanwhile"
    return f"table {relation}: it is locked by {by}; it is looked at again by itself"


def _dropped(plans: list[TablePlan]) -> Iterator[str]:
    for plan in plans:
        if not plan.rows.publishes:
            yield f"table {plan.qualified}: a Filter of the transforms drops every row, so it is not polled"


def _shared(plans: list[TablePlan]) -> Iterator[str]:
    """Topics that a transform gives to several tables."""
    by_topic: dict[str, list[str]] = {}
    for plan in plans:
        for topic in plan.rows.topics if plan.rows.publishes and plan.rows.key_columns else ():
            by_topic.setdefault(topic, []).append(plan.qualified)
    for topic, tables in by_topic.items():
        if len(tables) > 1:
            yield (
                f"topic {topic}: is that of {' and '.join(tables)}: rows of them that have a key in common overwrite"
                " each other, and removals of its keys are held"
            )


def _of_query(server: Server, connector: ConnectorConfig) -> Plans:
    assert connector.query is not None
    try:
        table = describe_query(server.connection, connector.query, masked=connector.masked)
        rows, cursor = _compiled(connector, table)
    except ConfigError as error:
        return Plans(problems=(*_catalog(server, connector), *error.problems))
    plan = _made(server, connector, table, rows, cursor, shape=table.digest())
    return Plans(plans=(plan,), chosen=(plan.qualified,), problems=tuple(_catalog(server, connector)))


def _catalog(server: Server, connector: ConnectorConfig) -> Iterator[str]:
    if connector.catalog not in {"", "%", server.database}:
        yield f"catalog.pattern: {connector.catalog} is not {server.database}, the database of connection.url"


def _partitions(chosen: list[Relation]) -> Iterator[str]:
    parts = [str(relation) for relation in chosen if relation.partition]
    if parts:
        yield (
            f"{', '.join(parts)}: partitions are polled as tables, each with a topic of its own; to poll the whole, set"
            " table.types=PARTITIONED TABLE"
        )


def _plan(server: Server, connector: ConnectorConfig, relation: Relation) -> TablePlan | None:
    """The plan of one relation, None when it has just gone. Raises ConfigError with all its problems."""
    table = describe(server.connection, relation)
    if table is None:
        return None
    rights = read_rights(server.connection, table.oid)
    problems = list(rights.lacking())
    try:
        rows, cursor = _compiled(connector, table)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    found = inspect(server.connection, table.oid) if table.kind in "rp" and not problems else None
    if found is not None and found.adopted:
        problems += rights.lacking_log()
    if problems:
        raise ConfigError(problems)
    plan = _made(server, connector, table, rows, cursor, shape=server.shape(table.oid))
    if plan.reading not in {Reading.WHOLE, Reading.PLACE}:
        problems += [_foreign(table, part) for part in server.foreign_parts(table.oid)]
    if found is not None and found.adopted and not _swept(connector, plan):
        problems += _unprotected(table, rows, found)
    if problems:
        raise ConfigError(problems)
    warnings = (*plan.warnings, *rights.narrowed(), *_warnings(found))
    adopted = found is not None and found.adopted and plan.reading is not Reading.PLACE
    notifies = adopted and found is not None and found.notify and plan.reading is not Reading.WHOLE
    restamped = found is not None and found.restamped
    return replace(plan, warnings=warnings, adopted=adopted, notifies=notifies, restamped=restamped)


def _foreign(table: Table, part: str) -> str:
    remedy = "detach it, or poll the table with mode=bulk"
    return f"table {table}: {part} is a foreign table, where changes leave no row versions: {remedy}"


def _swept(connector: ConnectorConfig, plan: TablePlan) -> bool:
    """Whether old keys of rows whose key columns change are found in the topic, or none are expected to be."""
    return plan.sweeps_always or (plan.sweeps and connector.sweep_interval_ms > 0) or not plan.reading.sweeps


def _unprotected(table: Table, rows: RowPlan, found: Inspection) -> Iterator[str]:
    """The record key of an adopted table must be made of columns that no update may change."""
    assert found.adoption is not None
    free = [name for name in rows.key_columns if name not in found.adoption.immutable]
    if free:
        remedy = replace(found.adoption, key=rows.key_columns).command()
        yield (
            f"table {table}: {', '.join(free)} of the record key may be updated, for the table was adopted with --key"
            f" {','.join(found.adoption.key)}, and the old key would stay in the topic: run {remedy}, or set"
            " compactory.sweep.interval.ms"
        )


def _compiled(connector: ConnectorConfig, table: Table) -> tuple[RowPlan, CursorOf]:
    """How a row becomes a record, and how rows are found. Raises ConfigError with all problems."""
    cursor = cursor_of(connector, table)
    problems = [f"table {table}: {problem}" if table.name else problem for problem in cursor.problems]
    problems += _soft_delete(connector, table)
    try:
        rows = compile_plan(connector, table)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if rows.publishes and not rows.key_columns and connector.topics.of(rows.topic).policy == "compact":
        what = f"table {table}" if table.name else "query"
        problems.append(
            f"{what}: records have no key, which a compacted topic refuses; add the transforms"
            " org.apache.kafka.connect.transforms.ValueToKey and ExtractField$Key, or for a topic that keeps records by"
            " age set topic.creation.default.cleanup.policy=delete"
        )
    if problems:
        raise ConfigError(problems)
    return rows, cursor


def _soft_delete(connector: ConnectorConfig, table: Table) -> Iterator[str]:
    if connector.soft_delete is None:
        return
    key, name = "compactory.soft.delete.column", connector.soft_delete.column
    column = table.column(name)
    if column is None:
        yield f"table {table}: {key}: there is no column {name}{nearest(name, (item.name for item in table.columns))}"
    elif column.type != "bool":
        yield f"table {table}: {key}: column {column.name} is of type {column.declared}, expected boolean"


def _made(
    server: Server, connector: ConnectorConfig, table: Table, rows: RowPlan, cursor: CursorOf, *, shape: str
) -> TablePlan:
    types = {column.name: key_type(column) for column in table.columns}
    delete = connector.soft_delete
    reading = reading_of(connector, table.kind)
    keyless = not rows.key_columns
    return TablePlan(
        schema=table.schema,
        name=table.name,
        oid=table.oid,
        kind=table.kind,
        topic=rows.topic,
        rows=rows,
        timestamps=cursor.timestamps,
        incrementing=cursor.incrementing,
        tie_breakers=table.primary_key,
        reading=reading,
        query=connector.query,
        suffix=connector.suffix,
        serializable=connector.serializable,
        since=_since(server, connector, zoned=cursor.zoned),
        delay_ms=connector.cursor.delay_ms,
        zone=connector.columns.zone,
        zoned=cursor.zoned,
        key_types=tuple(types[name] for name in rows.key_columns),
        shape=shape,
        soft_delete=delete.column if delete else None,
        tombstones=delete.tombstone if delete else True,
        tolerant=connector.errors.skip,
        keyless=keyless,
        sweeps=table.kind in "rp"
        and reading in {Reading.VERSIONS, Reading.WHOLE}
        and not keyless
        and len(rows.topics) == 1
        and rows.dated is None
        and not connector.suffix,
        sweeps_always=connector.bulk_deletes and not keyless and len(rows.topics) == 1,
        warnings=(*rows.warnings, *cursor.warnings, *_key_warnings(connector, table, rows), *_policy(connector, rows)),
        load_warnings=cursor.load_warnings,
    )


def _since(server: Server, connector: ConnectorConfig, *, zoned: bool) -> str | None:
    initial = connector.cursor.initial
    if initial is None or not connector.mode.timestamp:
        return None
    if initial == -1:
        initial = int(server.scalar(statement("source/now_ms")))
    return instant_text(initial, zone=None if zoned else connector.columns.zone)


def _key_warnings(connector: ConnectorConfig, table: Table, rows: RowPlan) -> Iterator[str]:
    """Yield doubts about a key: rows that share one overwrite each other in the topic."""
    if table.kind in "rp" and not table.primary_key:
        yield f"table {table}: has no primary key"
    if table.kind not in "rpm" or not rows.key_columns:
        return
    key = set(rows.key_columns)
    unique = [index for index in table.indexes if index.unique and set(index.columns) <= key]
    if (set(table.primary_key) <= key and table.primary_key) or any(index.predicate is None for index in unique):
        return
    columns = ", ".join(rows.key_columns)
    active = next(filter(None, (_active_column(table, index) for index in unique)), None)
    if active is None:
        yield (
            f"table {table}: the key's columns ({columns}) are not unique by any index; rows that share a key overwrite"
            " each other in the topic"
        )
    elif connector.soft_delete != SoftDelete(active, tombstone=True):  # no tombstone removes a living row's record
        yield (
            f"table {table}: the key's columns ({columns}) are unique among rows where {active} is not false; an"
            f" inactive row may overwrite the active one in the topic: set compactory.soft.delete.column={active}, with"
            " compactory.soft.delete.mode=tombstone"
        )


def _active_column(table: Table, index: Index) -> str | None:
    """Return the column of whose rows the index holds all that are not false."""
    for column in table.columns:
        names = (column.name, '"' + column.name.replace('"', '""') + '"')  # the server quotes as needed
        if any(index.predicate in active_predicates(name, not_null=column.not_null) for name in names):
            return column.name
    return None


def _policy(connector: ConnectorConfig, rows: RowPlan) -> Iterator[str]:
    if connector.topics.of(rows.topic).policy != "compact":
        yield f"topic {rows.topic}: cleanup.policy is not compact, as topic.creation says: it is no directory"


def _warnings(found: Inspection | None) -> Iterator[str]:
    if found is None:
        return
    for problem in found.problems:
        yield f"table {found.table}: {problem}" + (f"; remedy: {found.remedy}" if found.remedy else "")
