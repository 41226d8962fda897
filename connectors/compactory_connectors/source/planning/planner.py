"""From a connector and the server's catalogue to the plans of its tables; problems are found before anything runs."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

import psycopg

from compactory.errors import ConfigError
from compactory.records import is_topic_name
from compactory_connectors.connect.setting import nearest
from compactory_connectors.postgres.postgres_errors import refusal
from compactory_connectors.schema import Inspection, inspect

from ..config.connector import ConnectorConfig
from ..config.selection import Relation
from ..mapping.function_call import class_and_place
from ..mapping.key_parts import key_type
from ..mapping.row_plan import RowPlan, compile_plan
from ..postgres.catalog import Table, describe, describe_query, find_relations, read_rights
from ..postgres.server import Server, statement
from .cursor_columns import CursorOf, cursor_of, reading_of
from .plan_warnings import adoption_warnings, future_warnings, plan_warnings, set_warnings
from .row_order import format_timestamp
from .table_plan import Reading, TablePlan

__all__ = ["Cause", "Plans", "UnfitTable", "find_plans", "plan_tables"]


class Cause(Enum):
    """The cause for which a table can't be polled."""

    PROBLEMS = auto()
    LOCKED = auto()
    """Somebody has locked it: nothing is wrong with it."""
    NO_TOPIC = auto()
    """Kafka can't have a topic of its name. It keeps no other table from being polled."""


@dataclass(frozen=True, slots=True)
class UnfitTable:
    """A table that can't be polled, with all its problems."""

    name: str
    problems: tuple[str, ...]
    cause: Cause = Cause.PROBLEMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """The plans that one reading of the catalogue gives, and what is in the way of others."""

    plans: tuple[TablePlan, ...] = ()
    chosen: tuple[str, ...] = ()
    """Names of all tables that the connector polls, planned or not."""
    problems: tuple[str, ...] = ()
    """Problems of no single table: names that no table has, names that several schemas have."""
    unfit: tuple[UnfitTable, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def all_problems(self) -> list[str]:
        return [*self.problems, *(problem for table in self.unfit for problem in table.problems)]

    def problems_of_start(self, *, tolerated: Container[Cause] = ()) -> list[str]:
        """Return the problems with which a source does not start, without those of ``tolerated`` causes."""
        blocking = [
            table
            for table in self.unfit
            if table.cause not in tolerated and not (self.plans and table.cause is Cause.NO_TOPIC)
        ]
        return replace(self, unfit=tuple(blocking)).all_problems

    def sound(self) -> Plans:
        """Return these plans. Raises ConfigError with all problems of a start."""
        if problems := self.problems_of_start():
            raise ConfigError(problems)
        return self


def plan_tables(server: Server, connector: ConnectorConfig) -> list[TablePlan]:
    """Return a plan per table, in the connector's order. Raises ConfigError with all problems, and psycopg.Error."""
    return list(find_plans(server, connector).sound().plans)


def find_plans(server: Server, connector: ConnectorConfig, planned: Container[tuple[int, str]] = ()) -> Plans:
    """Return the plans of all tables that exist and fit, and the problems of the others.

    Tables whose oid and name are in ``planned`` are left out. Raises psycopg.Error.
    """
    if connector.query is not None:
        return _query_plan(server, connector)
    with server.connection.transaction():  # tables and their digests are of one snapshot
        server.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        relations = find_relations(server.connection)
        chosen = connector.selection.choose(relations)
        user = server.connection.info.user
        where = f"database {connector.connection.server} has no such table, or user {user} can't see it"
        problems = [*_catalog(server, connector), *connector.selection.missing(relations, where)]
        problems += connector.selection.clashes(chosen)
        new = [relation for relation in chosen if (relation.oid, str(relation)) not in planned]
        results = [_plan_or_unfit(server, connector, relation) for relation in new]
    plans = [result for result in results if isinstance(result, TablePlan)]
    return Plans(
        plans=tuple(plan for plan in plans if plan.rows.publishes),
        chosen=tuple(map(str, chosen)),
        problems=tuple(problems),
        unfit=tuple(result for result in results if isinstance(result, UnfitTable)),
        warnings=tuple(set_warnings(chosen, plans)),
    )


def _plan_or_unfit(server: Server, connector: ConnectorConfig, relation: Relation) -> TablePlan | UnfitTable | None:
    """Plan a relation; None if it has just been dropped. Raises psycopg.Error only where the connection is lost."""
    name = str(relation)
    try:
        with server.connection.transaction():  # a savepoint: a failure of one leaves the others alone
            plan = _plan(server, connector, relation)
    except ConfigError as error:
        return UnfitTable(name, tuple(error.problems))
    except psycopg.errors.LockNotAvailable:
        holders = "; ".join(server.lock_holders(relation.oid)) or "a transaction that has ended meanwhile"
        problem = f"table {relation}: it is locked by {holders}; it is looked at again by itself"
        return UnfitTable(name, (problem,), Cause.LOCKED)
    except psycopg.Error as error:
        if server.connection.closed:
            raise
        return UnfitTable(name, (f"table {relation}: {refusal(error)}",))
    except Exception as error:  # noqa: BLE001 - a mistake of ours about one table must not stop the others
        return UnfitTable(name, (f"table {relation}: unexpected error: {class_and_place(error)}",))
    if plan is not None and (problem_of_topic := _topic_problem(plan)) is not None:
        return UnfitTable(name, (problem_of_topic,), Cause.NO_TOPIC)
    return plan


def _topic_problem(plan: TablePlan) -> str | None:
    """Return the problem of a plan whose rows go to a topic that Kafka can't have, or None."""
    wrong = [topic for topic in plan.rows.topics if plan.rows.publishes and not is_topic_name(topic)]
    if not wrong:
        return None
    return (
        f"{plan.label}: makes the topic {wrong[0]!r}; Kafka takes up to 249 letters, digits, dots, underscores and"
        " hyphens; leave the table out with table.blacklist, or give it another topic with the transform RegexRouter"
    )


def _query_plan(server: Server, connector: ConnectorConfig) -> Plans:
    assert connector.query is not None
    problems = tuple(_catalog(server, connector))
    try:
        table = describe_query(server.connection, connector.query, masked=connector.masked)
        plan = _table_plan(server, connector, table, *_compiled(connector, table), shape=table.digest())
    except ConfigError as error:
        return Plans(problems=(*problems, *error.problems))
    if (problem := _topic_problem(plan)) is not None:
        return Plans(problems=(*problems, problem))
    return Plans(plans=(plan,), chosen=(plan.qualified,), problems=problems)


def _catalog(server: Server, connector: ConnectorConfig) -> Iterator[str]:
    if connector.catalog not in {"", "%", server.database}:
        yield f"catalog.pattern: {connector.catalog} is not {server.database}, the database of connection.url"


def _plan(server: Server, connector: ConnectorConfig, relation: Relation) -> TablePlan | None:
    """Return the plan of a relation; None if it has just been dropped. Raises ConfigError with all its problems."""
    table = describe(server.connection, relation)
    if table is None:
        return None
    rights = read_rights(server.connection, table.oid)
    problems = list(rights.lacking())
    try:
        rows, cursor = _compiled(connector, table)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    adoption = inspect(server.connection, table.oid) if table.kind.is_table and not problems else None
    is_adopted = adoption is not None and adoption.adopted
    if is_adopted:
        problems += rights.lacking_log()
    if problems:
        raise ConfigError(problems)
    plan = _table_plan(server, connector, table, rows, cursor, shape=server.shape(table.oid))
    if plan.reading is Reading.VERSIONS:
        problems += [_foreign(table, part) for part in server.foreign_parts(table.oid)]
    if adoption is not None and is_adopted and not _finds_old_keys(plan):
        problems += _unprotected(table, rows, adoption)
    if problems:
        raise ConfigError(problems)
    return replace(
        plan,
        warnings=(*plan.warnings, *rights.narrowed(), *adoption_warnings(adoption)),
        adopted=is_adopted and plan.reading is not Reading.CURSOR,
        notifies=adoption is not None and is_adopted and adoption.notify and plan.reading is Reading.VERSIONS,
        restamped=adoption is not None and adoption.restamped,
    )


def _foreign(table: Table, part: str) -> str:
    remedy = "detach it, or poll the table with mode=bulk"
    return f"table {table}: {part} is a foreign table, where changes leave no row versions: {remedy}"


def _finds_old_keys(plan: TablePlan) -> bool:
    """Return True if sweeps find old keys of rows whose key columns change, or no such keys are expected."""
    sweeps = plan.sweeps and plan.connector.sweep_interval_ms > 0
    return sweeps or plan.sweeps_always or not plan.reading.sweeps


def _unprotected(table: Table, rows: RowPlan, inspection: Inspection) -> Iterator[str]:
    """Yield a problem if an update may change columns that make the record key of an adopted table."""
    adoption = inspection.adoption
    assert adoption is not None
    if changeable := [name for name in rows.key_columns if name not in adoption.immutable]:
        remedy = replace(adoption, key=rows.key_columns).command()
        yield (
            f"table {table}: {', '.join(changeable)} of the record key may be updated, for the table was adopted with"
            f" --key {','.join(adoption.key)}, and the old key would stay in the topic: run {remedy}, or set"
            " compactory.sweep.interval.ms"
        )


def _compiled(connector: ConnectorConfig, table: Table) -> tuple[RowPlan, CursorOf]:
    """Return how a row becomes a record, and how rows are found. Raises ConfigError with all problems."""
    cursor = cursor_of(connector, table)
    problems = [f"table {table}: {problem}" if table.name else problem for problem in cursor.problems]
    problems += _soft_delete(connector, table)
    try:
        rows = compile_plan(connector, table)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if rows.publishes and not rows.key_columns and connector.topics.policy == "compact":
        subject = f"table {table}" if table.name else "query"
        problems.append(
            f"{subject}: records have no key, which a compacted topic refuses; add the transforms"
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


def _table_plan(
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
        sweeps=table.kind.is_table and reading.sweeps and has_one_topic and not connector.suffix,
        sweeps_always=connector.bulk_deletes and has_one_topic,
        warnings=(*rows.warnings, *cursor.warnings, *plan_warnings(connector, table, rows)),
        load_warnings=cursor.load_warnings,
    )
    return replace(plan, load_warnings=(*plan.load_warnings, *future_warnings(server, plan)))


def _initial(server: Server, connector: ConnectorConfig, *, zoned: bool) -> str | None:
    initial = connector.cursor.initial
    if initial is None or not connector.mode.timestamp:
        return None
    if initial == -1:
        initial = int(server.scalar(statement("source/now_ms")))
    return format_timestamp(initial, zone=None if zoned else connector.columns.zone)
