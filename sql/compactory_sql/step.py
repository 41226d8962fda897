"""A plan to adopt a table, and its steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from compactory_sql.migration import Migration

__all__ = ["Phase", "Plan", "Step"]


class Phase(Enum):
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

    phase: Phase
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

    def steps_of(self, phase: Phase) -> list[Step]:
        """Return the steps of one phase, in order."""
        return [step for step in self.steps if step.phase is phase]

    def script(self, lock_timeout: float = 2.0) -> str:
        """Return the plan as a script for psql (run it with ``-v ON_ERROR_STOP=1``). ``lock_timeout`` is in seconds."""
        parts = [f"-- {note}" for note in self.notes]
        parts += (
            ["\n".join(f"-- From now on refused: {change}" for change in self.refused_changes)] if self.steps else []
        )
        parts += [migration.script() for migration in self.migrations]
        for phase in Phase:
            steps = self.steps_of(phase)
            bodies = [f"-- {step.title}\n" + "\n".join(f"{text};" for text in step.sql) for step in steps]
            if not steps:
                continue
            if phase is Phase.BUILD:
                parts += [f"-- Builds: {phase.value}.", *bodies]
                continue
            head = [f"-- {phase.value[0].upper()}{phase.value[1:]}.", "BEGIN;"]
            parts += ["\n".join(head + [f"{text};" for text in self.preamble(phase, lock_timeout)]), *bodies, "COMMIT;"]
        return "\n\n".join(parts or ["-- Nothing to do."]) + "\n"

    def preamble(self, phase: Phase, lock_timeout: float) -> list[str]:
        """Return the first statements of a phase's transaction: time-outs, then the strongest lock that it needs."""
        timeouts = [f"SET LOCAL lock_timeout = '{round(lock_timeout * 1000)}ms'", "SET LOCAL statement_timeout = 0"]
        return [*timeouts, f"LOCK TABLE {self.table} IN ACCESS EXCLUSIVE MODE"] if phase is Phase.CHANGE else timeouts
