"""The triggers that an adopted table needs, and the steps that create them.

Postgres fires triggers in order of their names. These begin with ``zz_``, so that they see the row after the
triggers of the application. All are ENABLE ALWAYS, so that ``session_replication_role = replica`` does not switch
them off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from compactory_sql.adoption import XID_COLUMN, Adoption
from compactory_sql.loader import read, statements
from compactory_sql.naming import dollar_quoted, literal, object_name, quoted
from compactory_sql.step import Step, StepGroup
from compactory_sql.table import Column, Member, Table, Trigger

__all__ = ["NOTIFY_TRIGGER", "TRIGGER_PREFIX", "function_steps", "trigger_steps"]

TRIGGER_PREFIX = "zz_compactory_"
NOTIFY_TRIGGER = f"{TRIGGER_PREFIX}notify"

# Bits of pg_trigger.tgtype
_ROW, _BEFORE, _INSERT, _DELETE, _UPDATE, _TRUNCATE = 1, 2, 4, 8, 16, 32


class _Clock(NamedTuple):
    """The stamping of columns of one type: suffix of the function's name, expression of the time, comparison."""

    suffix: str
    time: str
    equal: str


_CLOCKS = {
    "timestamp without time zone": _Clock("stamp_utc", "current_timestamp AT TIME ZONE 'utc'", "timestamp_eq"),
    "timestamp with time zone": _Clock("stamp", "current_timestamp", "timestamptz_eq"),
}


@dataclass(frozen=True, kw_only=True)
class _TriggerSpec:
    """A trigger that some members need. A row trigger is created on the root alone: Postgres clones it to partitions.

    ``reads``: the columns in ``condition``. ``vital``: a source can miss changes without the trigger.
    """

    name: str
    kind: int
    events: str
    function: str
    settings: str | None
    members: tuple[Member, ...]
    referencing: str = ""
    condition: str = ""
    reads: tuple[str, ...] = ()
    vital: bool = True

    @property
    def per_row(self) -> bool:
        return bool(self.kind & _ROW)

    def equals(self, trigger: Trigger) -> bool:
        """Return True if the trigger does what is needed."""
        present = (trigger.kind, trigger.function, trigger.settings, {*trigger.reads})
        return present == (self.kind, self.function, self.settings, {*self.reads})

    def create(self, member: Member) -> str:
        level = "ROW" if self.per_row else "STATEMENT"
        argument = literal(self.settings) if self.settings is not None else ""
        when = f" WHEN ({self.condition})" if self.condition else ""
        return (
            f"CREATE TRIGGER {self.name} {self.events} ON {member.sql}{self.referencing}\n"
            f"    FOR EACH {level}{when}\n"
            f"    EXECUTE FUNCTION compactory.{quoted(self.function)}({argument})"
        )


def function_steps(table: Table, adoption: Adoption) -> Iterator[Step]:
    """Yield the step that creates the stamping function, if it is missing or has another body.

    Tables whose timestamp columns have the same name and type share one function.
    """
    column = table.columns[adoption.timestamp]
    name = _stamp_function(column)
    body = read("templates/stamp_body.sql").format(timestamp=column.sql, clock=_CLOCKS[column.type].time)
    if table.functions.get(name) == body:
        return
    function = f"compactory.{quoted(name)}"
    yield Step(
        group=StepGroup.CHANGE,
        title=f"create function {function}",
        problem=f"function {function} is missing or has another body",
        sql=statements("stamp", function=function, body=dollar_quoted(body)),
        vital=True,
    )


def trigger_steps(table: Table, adoption: Adoption) -> Iterator[Step]:
    """Yield steps for triggers that are missing, different, superfluous, or not enabled as ALWAYS."""
    for spec in _specs(table, adoption):
        for member in spec.members:
            yield from _steps_for(table, spec, member)
    if not adoption.notify:
        for member in table.members:
            if table.trigger(member, NOTIFY_TRIGGER):
                yield Step(
                    group=StepGroup.CHANGE,
                    title=f"drop trigger {NOTIFY_TRIGGER} on {member.sql}",
                    problem=f"{member.sql}: trigger {NOTIFY_TRIGGER} exists in spite of --no-notify",
                    sql=(f"DROP TRIGGER {NOTIFY_TRIGGER} ON {member.sql}",),
                )


def _specs(table: Table, adoption: Adoption) -> Iterator[_TriggerSpec]:
    settings, root, timestamp = adoption.settings(), (table.root,), table.columns[adoption.timestamp]
    yield _TriggerSpec(
        name=f"{TRIGGER_PREFIX}key",
        kind=_ROW | _BEFORE | _UPDATE,
        events="BEFORE UPDATE",
        condition=_key_differs(table, adoption),
        reads=adoption.immutable,
        function="refuse_key_change",
        settings=settings,
        members=root,
    )
    yield _TriggerSpec(
        name=f"{TRIGGER_PREFIX}stamp",
        kind=_ROW | _BEFORE | _INSERT | _UPDATE,
        events="BEFORE INSERT OR UPDATE",
        condition=_stamps_differ(timestamp),
        reads=(XID_COLUMN, timestamp.name),
        function=_stamp_function(timestamp),
        settings=None,
        members=root,
    )
    yield from _on_delete(table, settings)
    yield from _with_partitions(
        table,
        _TriggerSpec(
            name=f"{TRIGGER_PREFIX}truncate",
            kind=_BEFORE | _TRUNCATE,
            events="BEFORE TRUNCATE",
            function="log_truncate",
            settings=settings,
            # Triggers on members between root and leaves would log the leaves' rows a second time.
            members=tuple(member for member in table.members if member.is_leaf or member is table.root),
        ),
    )
    if adoption.notify:
        yield _TriggerSpec(
            name=NOTIFY_TRIGGER,
            kind=_INSERT | _DELETE | _UPDATE | _TRUNCATE,
            events="AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE",
            function="wake_source",
            settings=None,
            # Statement triggers fire on the table that a statement names, and are not cloned.
            members=table.members,
            vital=False,
        )


def _on_delete(table: Table, settings: str) -> Iterator[_TriggerSpec]:
    """Yield the triggers that log deleted rows.

    A partitioned table has statement triggers, because a row trigger also fires for a row that an UPDATE moves to
    another partition. It has a row trigger besides, because logical replication fires row triggers only.
    """
    name, root = f"{TRIGGER_PREFIX}delete", (table.root,)
    row_trigger = _TriggerSpec(
        name=name, kind=_ROW | _DELETE, events="AFTER DELETE", function="log_delete", settings=settings, members=root
    )
    if not table.is_partitioned:
        yield row_trigger
        return
    statement_trigger = _TriggerSpec(
        name=name,
        kind=_DELETE,
        events="AFTER DELETE",
        referencing=" REFERENCING OLD TABLE AS gone",
        function="log_deletes",
        settings=settings,
        members=table.members,
    )
    yield from _with_partitions(table, statement_trigger)
    yield replace(row_trigger, name=f"{name}_row", function="log_row_delete", settings=None, vital=False)


def _with_partitions(table: Table, spec: _TriggerSpec) -> Iterator[_TriggerSpec]:
    """Yield the trigger for the root (vital) and for partitions.

    Not vital on partitions: a row trigger logs deleted rows as well, and a source notices the new files of a TRUNCATE.
    """
    yield replace(spec, members=(table.root,))
    yield replace(spec, members=tuple(member for member in spec.members if member is not table.root), vital=False)


def _key_differs(table: Table, adoption: Adoption) -> str:
    # A function, not the operator *<>: when a dump is restored, the operator between two ROW() is parsed as a
    # comparison column by column, and fails.
    columns = [table.columns[name].sql for name in adoption.immutable]
    rows = (", ".join(f"{side}.{column}" for column in columns) for side in ("OLD", "NEW"))
    return "pg_catalog.record_image_ne({})".format(", ".join(f"ROW({row})" for row in rows))


def _stamps_differ(timestamp: Column) -> str:
    # False where the function would change nothing, as after an INSERT with both defaults: then it is not called.
    # The transaction id is compared first, because it differs for most updates. Functions, not operators, so that
    # neither a restored dump nor the search path of the adopting session changes the meaning.
    clock = _CLOCKS[timestamp.type]
    return (
        f"(pg_catalog.xid8eq(NEW.{XID_COLUMN}, pg_catalog.pg_current_xact_id())"
        f" AND pg_catalog.{clock.equal}(NEW.{timestamp.sql}, {clock.time})) IS NOT TRUE"
    )


def _stamp_function(column: Column) -> str:
    return object_name(column.name, _CLOCKS[column.type].suffix)


def _steps_for(table: Table, spec: _TriggerSpec, member: Member) -> Iterator[Step]:
    """Yield the steps that create, replace or enable a trigger of one member."""
    present = table.trigger(member, spec.name)
    if present is None or not spec.equals(present):
        yield _creation(table, spec, member, present)
        return
    for enabled_on in table.members if spec.per_row else (member,):
        trigger = table.trigger(enabled_on, spec.name)
        if trigger is not None and trigger.enabled != "A":
            yield Step(
                group=StepGroup.CHANGE,
                title=f"enable trigger {spec.name} on {enabled_on.sql}",
                problem=f"{enabled_on.sql}: trigger {spec.name} is not enabled as ALWAYS",
                sql=_enable(spec, [enabled_on.sql]),
                vital=spec.vital,
            )


def _creation(table: Table, spec: _TriggerSpec, member: Member, present: Trigger | None) -> Step:
    """Return the step that creates a trigger. It drops the present one, and those of partitions that are no clones."""
    partitions = [m for m in table.members if m is not member] if spec.per_row else []
    own_triggers = [m.sql for m in partitions if (t := table.trigger(m, spec.name)) and not t.cloned]
    drops = [*own_triggers, *([member.sql] if present else [])]
    return Step(
        group=StepGroup.CHANGE,
        title=f"{'replace' if present else 'create'} trigger {spec.name} on {member.sql}",
        problem=f"{member.sql}: trigger {spec.name} {'is not as it should be' if present else 'is missing'}",
        sql=(
            *(f"DROP TRIGGER {spec.name} ON {name}" for name in drops),
            spec.create(member),
            *_enable(spec, [member.sql, *(m.sql for m in partitions)]),
        ),
        vital=spec.vital,
    )


def _enable(spec: _TriggerSpec, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"ALTER TABLE ONLY {name} ENABLE ALWAYS TRIGGER {spec.name}" for name in names)
