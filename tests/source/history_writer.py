"""One connection of a random history: what it does to the table, statement by statement."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import psycopg

from tests.source.history import INSTANT, LOCK_TIMEOUT, ROWS, Shared

__all__ = ["Writer"]


class Writer:
    """Does something at random at each :meth:`step`, in transactions that stay open between them."""

    def __init__(self, url: str, name: str, seed: random.Random, shared: Shared) -> None:
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True, options=LOCK_TIMEOUT)
        self._name = name
        self._random = seed
        self._shared = shared
        self._prepared: list[str] = []
        self._savepoints = 0
        self._open = False

    def close(self) -> None:
        """End the transaction and leave."""
        self._connection.close()

    def reconnect(self) -> None:
        """Go on after the server was away; what was open is gone, what was prepared is not."""
        self._connection.close()
        self._connection = psycopg.connect(self._url, autocommit=True, options=LOCK_TIMEOUT)
        self._open = False

    def step(self) -> None:
        """One statement, or a few that belong together; a failure ends the transaction or goes back to a savepoint."""
        if not self._open:
            return self._begin()
        kinds: list[tuple[int, Callable[[], None]]] = [
            (10, self._update),
            (5, self._insert),
            (3, self._copy),
            (4, self._upsert),
            (4, self._flag),
            (3, self._delete),
            (3, self._twice),
            (3, self._block),
            (2, self._cascade),
            (2, self._as_replica),
            (3, self._move),
            (2, self._scratch),
            (6, self._savepoint),
            (8, self._end),
        ]
        action = self._random.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
        try:
            action()
        except psycopg.Error as error:
            self._shared.log.append(f"{self._name}: {type(error).__name__}")
            self._recover()

    def alone(self) -> None:
        """Something that needs the whole table for a moment, as a transaction; often a lock is in its way."""
        if self._open:
            return
        layout = self._shared.layout
        actions = [self._unwatched, self._rewrite, self._vacuum]
        actions += [self._reattach, self._attach] if layout.partitioned else []
        actions += [self._reload] if not layout.adopted and not layout.partitioned else []
        with suppress(psycopg.Error):
            self._random.choice(actions)()

    def finish(self) -> None:
        """End what is open, one way or the other."""
        if self._open:
            self._end(prepare=False)
        while self._prepared:
            self._settle_prepared()

    def _run(self, statement: str, *parameters: object) -> None:
        self._shared.log.append(f"{self._name}: {statement} {list(parameters) or ''}".rstrip())
        self._connection.execute(self._shared.layout.named(statement), parameters or None)

    def _begin(self) -> None:
        if self._prepared and self._random.random() < 0.3:
            return self._settle_prepared()
        level = self._random.choice(["READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
        self._run(f"BEGIN ISOLATION LEVEL {level}")
        self._open, self._savepoints = True, 0
        if self._random.random() < 0.3:
            self._run("SELECT pg_current_xact_id()")
        return None

    def _end(self, *, prepare: bool = True) -> None:
        self._open = False
        kind = self._random.random()
        if prepare and kind < 0.15 and len(self._prepared) < 4:
            gid = f"{self._name} {self._shared.value()} {self._connection.info.dbname}"
            try:
                self._run(f"PREPARE TRANSACTION '{gid}'")
            except psycopg.Error:
                self._run("ROLLBACK")
            else:
                self._prepared.append(gid)
        else:
            with suppress(psycopg.errors.SerializationFailure):  # rolled back then
                self._run("ROLLBACK" if kind < 0.35 else "COMMIT")

    def _settle_prepared(self) -> None:
        gid = self._prepared.pop(self._random.randrange(len(self._prepared)))
        self._run(f"{self._random.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} PREPARED '{gid}'")

    def _recover(self) -> None:
        if self._savepoints and self._random.random() < 0.7:
            self._run("ROLLBACK TO SAVEPOINT s")
        else:
            self._open = False
            self._run("ROLLBACK")

    def _savepoint(self) -> None:
        kind = self._random.random()
        if not self._savepoints or kind < 0.5:
            self._run("SAVEPOINT s")
            self._savepoints += 1
        elif kind < 0.75:
            self._run("RELEASE SAVEPOINT s")
            self._savepoints -= 1
        else:
            self._run("ROLLBACK TO SAVEPOINT s")

    def _row(self) -> int:
        return self._random.randint(1, self._shared.ids)

    def _moment(self) -> str:
        """A timestamp for a row: now, the same for many, or a clock that was set back or is mad."""
        moments = ["now", INSTANT, INSTANT, "2001-01-01", "1970-01-01", "2199-12-31", "infinity", "-infinity"]
        return self._random.choice(moments)

    def _update(self) -> None:
        low = self._row()
        high = low + self._random.choice([0, 0, 0, 3, 20])
        self._run(
            "UPDATE terminal SET value = %s || '-' || id, changed = %s WHERE id BETWEEN %s AND %s",
            self._shared.value(),
            self._moment(),
            low,
            high,
        )

    def _insert(self) -> None:
        rows = [self._shared.id() for _ in range(self._random.choice([1, 1, 2, 9]))]
        self._run(
            "INSERT INTO terminal (id, slot, acquirer, value, changed)"
            " SELECT id, 1 + id %% 3, NULL, %s || '-' || id, %s FROM unnest(%s::int8[]) AS id",
            self._shared.value(),
            self._moment(),
            rows,
        )

    def _copy(self) -> None:
        self._shared.log.append(f"{self._name}: COPY")
        with (
            self._connection.cursor() as cursor,
            cursor.copy(self._shared.layout.named("COPY terminal (id, slot, value, changed) FROM STDIN")) as copy,
        ):
            for _ in range(self._random.randint(1, 12)):
                number = self._shared.id()
                copy.write_row((number, 1 + number % 3, self._shared.value(), self._moment()))

    def _upsert(self) -> None:
        """Of a row that may be there; among partitions nothing keeps an id unique, so there of one that was new."""
        partitioned = self._shared.layout.partitioned
        number = self._shared.id() if partitioned else self._random.choice([self._row(), self._shared.id()])
        for _ in range(self._random.choice([1, 2])):
            self._run(
                "INSERT INTO terminal (id, slot, value) VALUES (%s, %s, %s)"
                f" ON CONFLICT ({'id, slot' if partitioned else 'id'}) DO UPDATE SET value = EXCLUDED.value",
                number,
                1 + number % 3,
                self._shared.value(),
            )

    def _flag(self) -> None:
        self._run(
            "UPDATE terminal SET is_active = NOT is_active, value = %s WHERE id = %s", self._shared.value(), self._row()
        )

    def _delete(self) -> None:
        if self._shared.layout.adopted:
            self._run("DELETE FROM terminal WHERE id = %s AND NOT is_active", self._row())
        else:
            self._run("DELETE FROM terminal WHERE id = %s", self._row())

    def _twice(self) -> None:
        number = self._row()
        for _ in range(2):
            self._run("UPDATE terminal SET value = %s WHERE id = %s", self._shared.value(), number)

    def _block(self) -> None:
        """An exception block: what was done in it is undone, what its handler does is not."""
        numbers = [self._row() for _ in range(3)]
        values = [self._shared.value() for _ in range(3)]
        updates = [
            f"UPDATE terminal SET value = '{value}' WHERE id = {number};"
            for value, number in zip(values, numbers, strict=True)
        ]
        raised = self._random.choice(["PERFORM 1 / 0;", "NULL;"])
        self._run(f"DO $$ BEGIN {updates[0]} BEGIN {updates[1]} {raised} EXCEPTION WHEN division_by_zero THEN"
                  f" {updates[2]} END; END $$")  # fmt: skip

    def _cascade(self) -> None:
        self._run("UPDATE acquirer SET id = id + 100 WHERE id = (SELECT min(id) FROM acquirer)")

    def _as_replica(self) -> None:
        """As logical replication writes: ordinary triggers and foreign keys are off."""
        self._run("SET LOCAL session_replication_role = replica")
        self._update()
        self._run("SET LOCAL session_replication_role = DEFAULT")

    def _move(self) -> None:
        """To another partition, where there are any."""
        self._run(
            "UPDATE terminal SET slot = 1 + slot %% 3, value = %s WHERE id = %s", self._shared.value(), self._row()
        )

    def _scratch(self) -> None:
        """Use an id up without writing WAL."""
        self._run("CREATE TEMP TABLE IF NOT EXISTS scratch (n int) ON COMMIT DROP")

    def _unwatched(self) -> None:
        """Triggers off for a while; what changes meanwhile bears no stamp."""
        self._run("BEGIN")
        try:
            self._run("ALTER TABLE terminal DISABLE TRIGGER USER")
            self._update()
            self._run("ALTER TABLE terminal ENABLE TRIGGER USER")
            for name in self._triggers():
                self._run(f'ALTER TABLE terminal ENABLE ALWAYS TRIGGER "{name}"')
            self._run("COMMIT")
        except psycopg.Error:
            self._run("ROLLBACK")
            raise

    def _triggers(self) -> list[str]:
        found = self._connection.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname LIKE 'zz_compactory_%%'",
            [self._shared.layout.table],
        )
        return [name for (name,) in found.fetchall()]

    def _rewrite(self) -> None:
        self._run("ALTER TABLE terminal ALTER COLUMN value TYPE text USING value || '~'")

    def _vacuum(self) -> None:
        self._run(
            self._random.choice(
                ["VACUUM (FREEZE) terminal", "VACUUM FULL terminal", "CLUSTER terminal USING terminal_pkey"]
            )
        )

    def _reload(self) -> None:
        """All rows are others, frozen at once and so visible to older snapshots too."""
        with self._connection.transaction():
            self._run("TRUNCATE terminal")
            statement = self._shared.layout.named("COPY terminal (id, slot, value) FROM STDIN (FREEZE)")
            self._shared.log.append(f"{self._name}: {statement}")
            with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
                for number in range(1, ROWS):
                    copy.write_row((number, 1, self._shared.value()))

    def _reattach(self) -> None:
        """A partition is away for a moment; rows that change meanwhile are changed under no trigger of the table's."""
        slot = self._random.randint(1, 3)
        self._run("BEGIN")
        try:
            self._run(f"ALTER TABLE terminal DETACH PARTITION part_{slot}")
            self._run(
                f"UPDATE part_{slot} SET value = %s || '-' || id WHERE id = %s", self._shared.value(), self._row()
            )
            self._run(f"ALTER TABLE terminal ATTACH PARTITION part_{slot} FOR VALUES IN ({slot})")
            self._run("COMMIT")
        except psycopg.Error:
            self._run("ROLLBACK")
            raise

    def _attach(self) -> None:
        """A partition whose rows were committed long before."""
        if self._shared.waiting:
            slot = self._shared.waiting.pop()
            self._run(f"ALTER TABLE terminal ATTACH PARTITION part_{slot} FOR VALUES IN ({slot})")
            return
        slot = self._shared.id() + 1000
        self._run(f"CREATE TABLE part_{slot} (LIKE terminal INCLUDING DEFAULTS)")
        self._run(
            f"INSERT INTO part_{slot} (id, slot, value)"
            f" SELECT id, {slot}, %s || '-' || id FROM unnest(%s::int8[]) AS id",
            self._shared.value(),
            [self._shared.id() for _ in range(5)],
        )
        self._shared.waiting.append(slot)
