"""A plan to adopt a table, and its steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from compactory_sql.migration import Migration

__all__ = ["Plan", "Step", "StepGroup"]


class StepGroup(Enum):
    """A group of steps; groups run in this order."""

    CHANGE = "columns and triggers, all in one short transaction under an exclusive lock"
    BUILD = "each on its own, because CONCURRENTLY is not possible in a transaction"
    ATTACH = "indexes of partitions attached to their parents' indexes, in one short transaction"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A change to make.

    ``problem``: what is wrong without the step. ``vital``: a source can miss changes without it. ``undo``: SQL that
    drops an index whose build failed. ``unique``: the build fails if two rows have the same key.
    """

    group: StepGroup
    title: str
    problem: str
    sql: tuple[str, ...]
    vital: bool = False
    undo: str = ""
    unique: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps that adopt a table; empty if it is adopted already.

    ``table``: quoted name. ``migrations``: those that the database lacks. ``notes``: conditions that no step can
    change. ``refused_changes``: changes of rows that Postgres refuses afterwards, in words.
    """

    table: str
    migrations: tuple[Migration, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    refused_changes: tuple[str, ...]

    def steps_of(self, group: StepGroup) -> list[Step]:
        """Return the steps of one group, in order."""
        return [step for step in self.steps if step.group is group]

    def script(self, lock_timeout: float = 2.0) -> str:
        """Return the plan as a script for psql (run it with ``-v ON_ERROR_STOP=1``). ``lock_timeout`` is in seconds."""
        parts = [f"-- {note}" for note in self.notes]
        if self.steps:
            parts.append("\n".join(f"-- From now on refused: {change}" for change in self.refused_changes))
        parts += [migration.script() for migration in self.migrations]
        for group in StepGroup:
            bodies = [
                f"-- {step.title}\n" + "\n".join(f"{text};" for text in step.sql) for step in self.steps_of(group)
            ]
            if not bodies:
                continue
            if group is StepGroup.BUILD:
                parts += [f"-- Builds: {group.value}.", *bodies]
                continue
            first_lines = [f"-- {group.value[0].upper()}{group.value[1:]}.", "BEGIN;"]
            first_lines += [f"{text};" for text in self.preamble(group, lock_timeout)]
            parts += ["\n".join(first_lines), *bodies, "COMMIT;"]
        return "\n\n".join(parts or ["-- Nothing to do."]) + "\n"

    def preamble(self, group: StepGroup, lock_timeout: float) -> list[str]:
        """Return the first statements of a group's transaction: time-outs, then the strongest lock that it needs."""
        texts = [f"SET LOCAL lock_timeout = '{round(lock_timeout * 1000)}ms'", "SET LOCAL statement_timeout = 0"]
        if group is StepGroup.CHANGE:
            texts.append(f"LOCK TABLE {self.table} IN ACCESS EXCLUSIVE MODE")
        return texts
