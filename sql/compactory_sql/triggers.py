"""The triggers of an adopted table: which it should have, and the steps from those it has to those.

Names begin with ``zz_`` because Postgres fires triggers by name: ours see what the application's have made of a row.
All are ENABLE ALWAYS, so that ``session_replication_role = replica`` does not switch them off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from compactory_sql.adoption import XID_COLUMN, Adoption
from compactory_sql.loader import read, statements
from compactory_sql.naming import dollar_quoted, literal, made_name, quoted
from compactory_sql.step import Phase, Step
from compactory_sql.table import Column, Member, Table, Trigger

__all__ = ["NOTIFY_TRIGGER", "TRIGGER_PREFIX", "function_steps", "trigger_steps"]

TRIGGER_PREFIX = "zz_compactory_"
NOTIFY_TRIGGER = f"{TRIGGER_PREFIX}notify"

# Bits of pg_trigger.tgtype
_ROW, _BEFORE, _INSERT, _DELETE, _UPDATE, _TRUNCATE = 1, 2, 4, 8, 16, 32


class _Clock(NamedTuple):
    """The stamp of columns of one type: the ending of the function's name, the time, and how times compare."""

    suffix: str
    now: str
    equal: str


_CLOCKS = {
    "timestamp without time zone": _Clock("stamp_utc", "current_timestamp AT TIME ZONE 'utc'", "timestamp_eq"),
    "timestamp with time zone": _Clock("stamp", "current_timestamp", "timestamptz_eq"),
}


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """A trigger on some members. Row triggers are made on the root alone: Postgres clones them to partitions.

    ``reads``: the columns of ``condition``. ``sparing``: the condition only spares work.
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
    sparing: bool = False
    vital: bool = True

    @property
    def per_row(self) -> bool:
        return bool(self.kind & _ROW)

    def fits(self, trigger: Trigger) -> bool:
        return self.serves(trigger) and {*trigger.reads} == {*self.reads}

    def serves(self, trigger: Trigger) -> bool:
        """Whether it does all that is wanted, if with more work, as those made by earlier versions."""
        same = (trigger.kind, trigger.function, trigger.settings) == (self.kind, self.function, self.settings)
        return same and ({*trigger.reads} == {*self.reads} or (self.sparing and not trigger.reads))

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
    """The function that stamps, where it is missing. Tables with a timestamp column of one name and type share it."""
    column = table.columns[adoption.timestamp]
    name = _stamp_function(column)
    body = read("templates/stamp_body.sql").format(timestamp=column.sql, clock=_CLOCKS[column.type].now)
    if table.functions.get(name) == body:
        return
    function = f"compactory.{quoted(name)}"
    yield Step(
        phase=Phase.CHANGE,
        title=f"create function {function}",
        problem=f"function {function} is missing or has another text",
        sql=statements("stamp", function=function, body=dollar_quoted(body)),
        vital=True,
    )


def trigger_steps(table: Table, adoption: Adoption) -> Iterator[Step]:
    """Everything that is missing, different, not enabled as ALWAYS, or not wanted any more."""
    for wanted in _wanted(table, adoption):
        for member in wanted.members:
            yield from _steps_for(table, wanted, member)
    if not adoption.notify:
        for member in table.members:
            if table.trigger(member, NOTIFY_TRIGGER):
                yield Step(
                    phase=Phase.CHANGE,
                    title=f"drop trigger {NOTIFY_TRIGGER} on {member.sql}",
                    problem=f"{member.sql}: trigger {NOTIFY_TRIGGER} is there, and was not asked for",
                    sql=(f"DROP TRIGGER {NOTIFY_TRIGGER} ON {member.sql}",),
                )


def _wanted(table: Table, adoption: Adoption) -> Iterator[_Wanted]:
    settings, root, timestamp = adoption.settings(), (table.root,), table.columns[adoption.timestamp]
    yield _Wanted(
        name=f"{TRIGGER_PREFIX}key",
        kind=_ROW | _BEFORE | _UPDATE,
        events="BEFORE UPDATE",
        condition=_key_differs(table, adoption),
        reads=adoption.immutable,
        function="refuse_key_change",
        settings=settings,
        members=root,
    )
    yield _Wanted(
        name=f"{TRIGGER_PREFIX}stamp",
        kind=_ROW | _BEFORE | _INSERT | _UPDATE,
        events="BEFORE INSERT OR UPDATE",
        condition=_stamps_differ(timestamp),
        reads=(XID_COLUMN, timestamp.name),
        sparing=True,
        function=_stamp_function(timestamp),
        settings=None,
        members=root,
    )
    yield from _on_delete(table, settings)
    yield from _with_partitions(
        table,
        _Wanted(
            name=f"{TRIGGER_PREFIX}truncate",
            kind=_BEFORE | _TRUNCATE,
            events="BEFORE TRUNCATE",
            function="log_truncate",
            settings=settings,
            # Those between root and leaves would only log the leaves' rows a second time.
            members=tuple(member for member in table.members if member.leaf or member is table.root),
        ),
    )
    if adoption.notify:
        yield _Wanted(
            name=NOTIFY_TRIGGER,
            kind=_INSERT | _DELETE | _UPDATE | _TRUNCATE,
            events="AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE",
            function="wake_source",
            settings=None,
            # Statement triggers fire on the table that a statement names, and are not cloned.
            members=table.members,
            vital=False,
        )


def _on_delete(table: Table, settings: str) -> Iterator[_Wanted]:
    """Row triggers also fire for rows that logical replication applies, but can't tell moved rows from lost ones."""
    name, root = f"{TRIGGER_PREFIX}delete", (table.root,)
    rows = _Wanted(
        name=name, kind=_ROW | _DELETE, events="AFTER DELETE", function="log_delete", settings=settings, members=root
    )
    if not table.partitioned:
        yield rows
        return
    statements = _Wanted(
        name=name,
        kind=_DELETE,
        events="AFTER DELETE",
        referencing=" REFERENCING OLD TABLE AS gone",
        function="log_deletes",
        settings=settings,
        members=table.members,
    )
    yield from _with_partitions(table, statements)
    yield replace(rows, name=f"{name}_row", function="log_row_delete", settings=None, vital=False)


def _with_partitions(table: Table, wanted: _Wanted) -> Iterator[_Wanted]:
    """Those of partitions are not vital: a row trigger stands in for them, and TRUNCATE makes new files."""
    yield replace(wanted, members=(table.root,))
    yield replace(wanted, members=tuple(each for each in wanted.members if each is not table.root), vital=False)


def _key_differs(table: Table, adoption: Adoption) -> str:
    # A function call and not the operator *<>: between two ROW() it is taken for a comparison column by column when
    # a dump is restored, and fails.
    columns = [table.columns[name].sql for name in adoption.immutable]
    rows = (", ".join(f"{side}.{column}" for column in columns) for side in ("OLD", "NEW"))
    return "pg_catalog.record_image_ne({})".format(", ".join(f"ROW({row})" for row in rows))


def _stamps_differ(timestamp: Column) -> str:
    # False exactly where the function would change nothing: after an INSERT that left both columns to their defaults it
    # is not called. The id is compared first: that of a row to be updated mostly is another. Functions instead of
    # operators, so that a dump spells what it restores and the search path of whoever adopts does not matter.
    clock = _CLOCKS[timestamp.type]
    return (
        f"(pg_catalog.xid8eq(NEW.{XID_COLUMN}, pg_catalog.pg_current_xact_id())"
        f" AND pg_catalog.{clock.equal}(NEW.{timestamp.sql}, {clock.now})) IS NOT TRUE"
    )


def _stamp_function(column: Column) -> str:
    return made_name(column.name, _CLOCKS[column.type].suffix)


def _steps_for(table: Table, wanted: _Wanted, member: Member) -> Iterator[Step]:
    present = table.trigger(member, wanted.name)
    if present is None or not wanted.fits(present):
        yield _made_anew(table, wanted, member, present)
        if present is None or not wanted.serves(present):
            return
    for each in table.members if wanted.per_row else (member,):
        trigger = table.trigger(each, wanted.name)
        if trigger is not None and trigger.enabled != "A":
            yield Step(
                phase=Phase.CHANGE,
                title=f"enable trigger {wanted.name} on {each.sql}",
                problem=f"{each.sql}: trigger {wanted.name} is not enabled as ALWAYS",
                sql=_enable(wanted, [each.sql]),
                vital=wanted.vital,
            )


def _made_anew(table: Table, wanted: _Wanted, member: Member, present: Trigger | None) -> Step:
    below = [m for m in table.members if m is not member] if wanted.per_row else []
    strays = [m.sql for m in below if (t := table.trigger(m, wanted.name)) and not t.cloned]
    drops = [*strays, *([member.sql] if present else [])]
    serves, wrong = False, "is missing"
    if present is not None:
        serves = wanted.serves(present)
        wrong = "has no condition, and is slower than need be" if serves else "is another than wanted"
    return Step(
        phase=Phase.CHANGE,
        title=f"{'replace' if present else 'create'} trigger {wanted.name} on {member.sql}",
        problem=f"{member.sql}: trigger {wanted.name} {wrong}",
        sql=(
            *(f"DROP TRIGGER {wanted.name} ON {name}" for name in drops),
            wanted.create(member),
            *_enable(wanted, [member.sql, *(m.sql for m in below)]),
        ),
        vital=wanted.vital and not serves,
    )


def _enable(wanted: _Wanted, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"ALTER TABLE ONLY {name} ENABLE ALWAYS TRIGGER {wanted.name}" for name in names)
