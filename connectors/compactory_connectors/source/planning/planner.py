"""From a connector and the server's catalogue to the plans of its tables; problems are found before anything runs."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

import psycopg

from compactory.errors import ConfigError
from compactory.records import is_topic_name
from compactory_connectors.connect.setting import nearest
from compactory_connectors.postgres.postgres_errors import refusal
from compactory_connectors.schema import Inspection, inspect

from ..config.connector import ConnectorConfig
from ..config.selection import Relation
from ..mapping.chain import RowPlan, compile_plan
from ..mapping.function_call import class_and_place
from ..mapping.key_parts import key_type
from ..postgres.catalog import Table, describe, describe_query, find_relations
from ..postgres.rights import read_rights
from ..postgres.server import Server, statement
from .cursor_columns import CursorOf, cursor_of, reading_of
from .plan_warnings import adoption_warnings, future_rows, plan_warnings
from .row_order import format_timestamp
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
    nameless: tuple[str, ...] = ()
    """Those of them that make no name of a topic: a source starts without them."""
    warnings: tuple[str, ...] = ()

    @property
    def all_problems(self) -> list[str]:
        """Problems of the whole and of each table."""
        return [*self.problems, *(problem for _, its in self.unfit for problem in its)]

    def problems_of_start(self, *, but: Container[str] = ()) -> list[str]:
        """Return the problems with which a source does not start, without those of the tables ``but``.

        A table that makes no name of a topic keeps no other table from being polled.
        """
        tolerated = self.nameless if self.plans else ()
        problems = [problem for name, its in self.unfit if name not in tolerated and name not in but for problem in its]
        return [*self.problems, *problems]

    def sound(self) -> Plans:
        """Return these plans. Raises ConfigError with all problems of a start."""
        if problems := self.problems_of_start():
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
        planner = _Planner(server, connector)
        for relation in chosen:
            if (relation.oid, str(relation)) not in known:
                planner.add(relation)
    warnings = (*_partitions(chosen), *_dropped(planner.plans), *_shared(planner.plans))
    sent = tuple(plan for plan in planner.plans if plan.rows.publishes)
    return Plans(
        plans=sent,
        chosen=tuple(map(str, chosen)),
        problems=tuple(problems),
        unfit=tuple(planner.unfit),
        locked=tuple(planner.locked),
        nameless=tuple(planner.nameless),
        warnings=warnings,
    )


class _Planner:
    """Collects the plans of relations, and the problems of those that can't be polled."""

    def __init__(self, server: Server, connector: ConnectorConfig) -> None:
        self.plans: list[TablePlan] = []
        self.unfit: list[tuple[str, tuple[str, ...]]] = []
        self.locked: list[str] = []
        self.nameless: list[str] = []
        self._server = server
        self._connector = connector

    def add(self, relation: Relation) -> None:
        """Plan a relation. Raises psycopg.Error only where the connection is lost."""
        name = str(relation)
        try:
            with self._server.connection.transaction():  # a savepoint: a failure of one leaves the others alone
                plan = _plan(self._server, self._connector, relation)
        except ConfigError as error:
            self.unfit.append((name, tuple(error.problems)))
        except psycopg.errors.LockNotAvailable:
            self.unfit.append((name, (_locked(self._server, relation),)))
            self.locked.append(name)
        except psycopg.Error as error:
            if self._server.connection.closed:
                raise
            self.unfit.append((name, (f"table {relation}: {refusal(error)}",)))
        except Exception as error:  # noqa: BLE001 - a mistake of ours about one table must not stop the others
            self.unfit.append((name, (f"table {relation}: unexpected error: {class_and_place(error)}",)))
        else:
            self._keep(name, plan)

    def _keep(self, name: str, plan: TablePlan | None) -> None:
        if plan is not None and (problem := _no_topic(plan)) is not None:
            self.unfit.append((name, (problem,)))
            self.nameless.append(name)
        elif plan is not None:
            self.plans.append(plan)


def _no_topic(plan: TablePlan) -> str | None:
    """Return the problem of a plan whose rows go to a topic that Kafka can't have, or None."""
    wrong = [topic for topic in plan.rows.topics if plan.rows.publishes and not is_topic_name(topic)]
    if not wrong:
        return None
    return (
        f"{plan.label}: makes the topic {wrong[0]!r}; Kafka takes up to 249 letters, digits, dots, underscores and"
        " hyphens; leave the table out with table.blacklist, or give it another topic with the transform RegexRouter"
    )


def _locked(server: Server, relation: Relation) -> str:
    by = "; ".join(server.lock_holders(relation.oid)) or "a transaction that has ended meanwhile"
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
    if (problem := _no_topic(plan)) is not None:
        return Plans(problems=(*_catalog(server, connector), problem))
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
    if plan.reading not in {Reading.WHOLE, Reading.CURSOR}:
        problems += [_foreign(table, part) for part in server.foreign_parts(table.oid)]
    if found is not None and found.adopted and not _swept(connector, plan):
        problems += _unprotected(table, rows, found)
    if problems:
        raise ConfigError(problems)
    warnings = (*plan.warnings, *rights.narrowed(), *adoption_warnings(found))
    adopted = found is not None and found.adopted and plan.reading is not Reading.CURSOR
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
    reading = reading_of(connector, table.kind)
    has_one_topic = bool(rows.key_columns) and len(rows.topics) == 1
    plan = TablePlan(
        connector=connector,
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
        initial=_initial(server, connector, zoned=cursor.zoned),
        zoned=cursor.zoned,
        key_types=tuple(types[name] for name in rows.key_columns),
        shape=shape,
        sweeps=table.kind in "rp" and reading.sweeps and has_one_topic and not connector.suffix,
        sweeps_always=connector.bulk_deletes and has_one_topic,
        warnings=(*rows.warnings, *cursor.warnings, *plan_warnings(connector, table, rows)),
        load_warnings=cursor.load_warnings,
    )
    return replace(plan, load_warnings=(*plan.load_warnings, *future_rows(server, plan)))


def _initial(server: Server, connector: ConnectorConfig, *, zoned: bool) -> str | None:
    initial = connector.cursor.initial
    if initial is None or not connector.mode.timestamp:
        return None
    if initial == -1:
        initial = int(server.scalar(statement("source/now_ms")))
    return format_timestamp(initial, zone=None if zoned else connector.columns.zone)
