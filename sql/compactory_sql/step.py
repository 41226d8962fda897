"""Steps of an adoption, and the plan that they make up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from compactory_sql.migration import Migration

__all__ = ["Phase", "Plan", "Step"]


class Phase(Enum):
    """When a step runs; phases follow each other in this order."""

    CHANGE = "columns and triggers, all in one short transaction under an exclusive lock"
    BUILD = "each on its own, because CONCURRENTLY is not possible in a transaction"
    ATTACH = "indexes of partitions joined to their parents', in one short transaction"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing to do.

    ``problem`` says what is wrong without it; ``vital``: changes could be missed without it. ``undo`` removes what is
    left of an index when its build failed; ``unique``: rows with one key make it fail.
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
    """The steps that adopt a table as asked; nothing is left to do when ``steps`` is empty.

    ``table`` is quoted; ``migrations`` are those that the database lacks; ``notes`` say what no step can change;
    ``refused``: changes of rows that Postgres refuses to the application afterwards, in words.
    """

    table: str
    migrations: tuple[Migration, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    refused: tuple[str, ...]

    def of(self, phase: Phase) -> list[Step]:
        """The steps of one phase, in order."""
        return [step for step in self.steps if step.phase is phase]

    def script(self, lock_timeout: float = 2.0) -> str:
        """The plan as a script for psql; run it with ``-v ON_ERROR_STOP=1``."""
        parts = [f"-- {note}" for note in self.notes]
        parts += ["\n".join(f"-- From now on refused: {change}" for change in self.refused)] if self.steps else []
        parts += [migration.script() for migration in self.migrations]
        for phase in Phase:
            steps = self.of(phase)
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
        """The first statements of a phase's transaction: a bound on waiting, then the strongest lock at once."""
        bound = [f"SET LOCAL lock_timeout = '{round(lock_timeout * 1000)}ms'", "SET LOCAL statement_timeout = 0"]
        return [*bound, f"LOCK TABLE {self.table} IN ACCESS EXCLUSIVE MODE"] if phase is Phase.CHANGE else bound
