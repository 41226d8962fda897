"""Random histories of a table and its topic: whatever may lead a source to take a living row for gone.

One thread does everything, a session's rounds included, so that nothing changes during a round: each key that readers
found before it, and that a living row has, must be found after it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from compactory.errors import CompactoryError, Unreachable
from compactory_connectors.kafka.topic_reader import TopicReader
from compactory_connectors.source.config.connector import SoftDelete, TopicCreation
from compactory_connectors.source.runtime.offset_checks import TopicReplaced
from compactory_connectors.source.runtime.session import Session
from compactory_connectors.source.status.board import StatusBoard
from compactory_connectors.source.status.orders import Orders
from compactory_connectors.source.status.status import TableStatus
from tests.source.conftest import Bench
from tests.source.removals.test_removals import ROWS, adopted, by_terminal
from tests.stack.apache_kafka import new_admin

__all__ = ["Lookups", "RemovalHistory"]

TABLE = "public.terminal_acquirer"
PARTITIONERS = ["murmur2_random", "consistent_random", "fnv1a", "random"]


class Lookups:
    """A topic as stores read it: within a partition the last record of a key counts, among them the newest."""

    def __init__(self, bench: Bench) -> None:
        self._reader = TopicReader(bench.kafka, bench.topic)
        self._copies: dict[bytes, dict[int, tuple[int, bool]]] = {}

    def close(self) -> None:
        self._reader.close()

    @property
    def partitions(self) -> int:
        return len(self._reader.partitions)

    def found(self) -> set[bytes]:
        """The keys that readers find now."""
        for messages in self._reader.read_to(self._reader.ends()):
            for message in messages:
                copy = (message.timestamp()[1], message.value() is not None)
                self._copies.setdefault(message.key() or b"", {})[message.partition() or 0] = copy
        newest = {
            key: max((stamp, at, alive) for at, (stamp, alive) in its.items()) for key, its in self._copies.items()
        }
        return {key for key, (_, _, alive) in newest.items() if alive}


class RemovalHistory:
    """One table, one topic, and a session that is driven round by round."""

    def __init__(self, bench: Bench, seed: random.Random) -> None:
        self._bench, self._random = bench, seed
        self.log: list[str] = []
        self.board = StatusBoard(bench.prefix)
        self._orders = Orders()
        self._rules = TopicCreation(partitions=2, replication_factor=1)
        self._by_terminal, self._partitioner, self._soft = False, "murmur2_random", True
        self._terminal_key = by_terminal(bench)
        self._ids = 41
        bench.sql.execute(ROWS.format(40))
        bench.sql.execute("CREATE TABLE saved (LIKE terminal_acquirer)")
        if seed.random() < 0.4:
            self._note("adopt")
            adopted(bench)
        self._lookups: Lookups | None = None
        self._session: Session | None = None
        self.rounds(4)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        if self._lookups is not None:
            self._lookups.close()

    def step(self) -> None:
        """Something happens, and the source goes on."""
        kinds: list[tuple[int, Callable[[], None]]] = [
            (6, self._change),
            (5, self._delete),
            (5, self._swap),
            (3, self._move),
            (2, self._restart),
            (2, self._other_keys),
            (2, self._other_partitioner),
            (1, self._other_soft_delete),
            (1, self._grow),
            (3, self._foreign),
            (2, self._repair),
            (1, self._primary_key),
            (1, self._child),
            (1, self._save),
            (1, self._restore),
        ]
        action = self._random.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
        with suppress(psycopg.Error):  # keys of an adopted table are immutable, among others
            action()
        self.rounds(self._random.choice([1, 1, 2, 6]))

    def rounds(self, number: int) -> None:
        """Let the source go on, and compare what readers find before and after each round."""
        for _ in range(number):
            before, rows = self._found(), self._rows()
            self._round()
            after = self._found()
            for keys in rows:
                if keys & before and not keys & after:
                    raise AssertionError(f"readers found {keys & before} of a living row, and find it no more")

    def settle(self) -> None:
        """The source catches up; then every living row is found."""
        deadline = time.monotonic() + 20
        while missing := self._missing():
            assert time.monotonic() < deadline, f"rows are not found: {missing}"
            self.rounds(1)

    @property
    def status(self) -> TableStatus:
        [table] = self.board.picture().tables
        return table

    def _missing(self) -> list[set[bytes]]:
        found = self._found()
        return [keys for keys in self._rows() if not keys & found]

    def _found(self) -> set[bytes]:
        if self._lookups is None and self._bench.kafka.topics([self._bench.topic]):
            self._lookups = Lookups(self._bench)
        return self._lookups.found() if self._lookups is not None else set()

    def _rows(self) -> list[set[bytes]]:
        """Of each living row the keys that its record may have, by this configuration or the one before."""
        living = "WHERE is_active" if self._soft else ""
        query = f"SELECT id::text, terminal_id FROM terminal_acquirer {living}"
        return [{one.encode(), other.encode()} for one, other in self._bench.sql.execute(query).fetchall()]

    def _round(self) -> None:
        try:
            if self._session is None:
                self._session = self._open()
            for table in self.board.picture().tables:
                if table.removal is not None:
                    self._note(f"approve {table.removal.id}")
                    self._orders.approve(TABLE, table.removal.id)
            self._session.poll_tables(threading.Event())
        except (TopicReplaced, Unreachable) as ended:
            self._note(f"session ends: {ended}")
            self._end()
        except CompactoryError as ended:
            self._note(f"{type(ended).__name__}: {ended}")
            raise

    def _open(self) -> Session:
        connector = self._bench.connector(
            producer={"partitioner": self._partitioner},
            soft_delete=SoftDelete("is_active") if self._soft else None,
            sweep_interval_ms=1,
            poll_interval_ms=1,
            max_removed_percent=100,
            topics=self._rules,
            **(self._terminal_key if self._by_terminal else {}),
        )
        return Session.open(
            connector, self._bench.kafka, self.board, create_topics=True, strict=False, orders=self._orders
        )

    def _end(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
        if self._lookups is not None:
            self._lookups.close()
        self._lookups = None

    def _note(self, text: str) -> None:
        self.log.append(text)

    def _run(self, statement: str, *parameters: Any) -> None:
        self._note(f"{statement} {list(parameters) or ''}".rstrip())
        self._bench.sql.execute(statement, parameters or None)

    def _row(self) -> int:
        return self._random.randint(1, self._ids)

    def _change(self) -> None:
        self._run("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id %% 5 = %s", self._random.randrange(5))
        self._ids += 1
        self._run("INSERT INTO terminal_acquirer (id, terminal_id, acquirer_id) VALUES (%s, %s, 'A')",
                  self._ids, f"T{self._ids}")  # fmt: skip

    def _delete(self) -> None:
        if self._random.random() < 0.5:
            self._run("UPDATE terminal_acquirer SET is_active = NOT is_active WHERE id = %s", self._row())
        else:
            self._run("DELETE FROM terminal_acquirer WHERE id = %s", self._row())

    def _swap(self) -> None:
        """A row takes another one's place and terminal; the other one is deactivated, and may go."""
        number = self._row()
        self._ids += 1
        with self._bench.sql.transaction():
            self._run("UPDATE terminal_acquirer SET is_active = false WHERE id = %s", number)
            self._run(
                "INSERT INTO terminal_acquirer (id, terminal_id, acquirer_id)"
                " SELECT %s, terminal_id, 'C' FROM terminal_acquirer WHERE id = %s LIMIT 1",
                self._ids,
                number,
            )
            if self._random.random() < 0.5:
                self._run("DELETE FROM terminal_acquirer WHERE id = %s", number)

    def _move(self) -> None:
        """Rows get other ids: other places in the ranges, and other keys."""
        self._ids += 3
        self._run("UPDATE terminal_acquirer SET id = %s + id %% 3 WHERE id = %s", self._ids - 3, self._row())

    def _restart(self) -> None:
        self._note("restart")
        self._end()

    def _other_keys(self) -> None:
        self._by_terminal = not self._by_terminal
        self._note(f"keys are {'terminals' if self._by_terminal else 'ids'}")
        self._end()

    def _other_partitioner(self) -> None:
        self._partitioner = self._random.choice(PARTITIONERS)
        self._note(f"partitioner {self._partitioner}")
        self._end()

    def _other_soft_delete(self) -> None:
        self._soft = not self._soft
        self._note(f"soft delete {self._soft}")
        self._end()

    def _grow(self) -> None:
        now = len(self._bench.kafka.topics([self._bench.topic])[self._bench.topic].partitions)
        if now >= 5:
            return
        self._note(f"{now + 1} partitions")
        admin = new_admin({"bootstrap.servers": self._bench.kafka.bootstrap})
        admin.create_partitions([NewPartitions(self._bench.topic, now + 1)])[self._bench.topic].result()
        if self._lookups is not None:
            self._lookups.close()
        self._lookups = None

    def _foreign(self) -> None:
        """Somebody else writes keys of rows, and such as no row has, wherever it likes, by clocks of its own.

        A record in the key's partition, but older than a tombstone in another, hides its row: operators repair that.
        """
        before = self._found()
        producer = Producer({"bootstrap.servers": self._bench.kafka.bootstrap})  # one that knows of new partitions
        rows = [key for keys in self._rows() for key in sorted(keys)]
        for key in [*self._random.sample(rows, min(3, len(rows))), b"nobody's"]:
            partition = self._random.randrange(
                len(self._bench.kafka.topics([self._bench.topic])[self._bench.topic].partitions)
            )
            stamp = int(time.time() * 1000) + self._random.choice([-3_600_000, -1, 0, 600_000])
            self._note(f"foreign record {key!r} in partition {partition} at {stamp}")
            producer.produce(self._bench.topic, b"{}", key, partition=partition, timestamp=stamp)
        assert producer.flush(30) == 0
        if hidden := sorted(before - self._found()):
            self._note(f"repair hidden {hidden}")
            self._orders.resend(TABLE, hidden)

    def _repair(self) -> None:
        rows = [key for keys in self._rows() for key in sorted(keys)]
        keys = [*self._random.sample(rows, min(4, len(rows))), b"nobody's"]
        self._note(f"repair {keys}")
        self._orders.resend(TABLE, keys)

    def _primary_key(self) -> None:
        with self._bench.sql.transaction():
            self._run("ALTER TABLE terminal_acquirer DROP CONSTRAINT IF EXISTS terminal_acquirer_pkey")
            key = self._random.choice([None, "id", "terminal_id, id"])
            if key is not None:
                self._run(f"ALTER TABLE terminal_acquirer ADD CONSTRAINT terminal_acquirer_pkey PRIMARY KEY ({key})")
        if self._random.random() < 0.5:
            self._run("UPDATE terminal_acquirer SET id = %s WHERE id %% 7 = 1", self._row())

    def _child(self) -> None:
        self._run("CREATE TABLE IF NOT EXISTS child () INHERITS (terminal_acquirer)")
        self._run("INSERT INTO child (id, terminal_id, acquirer_id)"
                  " SELECT id, 'C' || terminal_id, 'A' FROM ONLY terminal_acquirer WHERE id %% 4 = %s",
                  self._random.randrange(4))  # fmt: skip

    def _save(self) -> None:
        self._run("TRUNCATE saved")
        self._run(
            "INSERT INTO saved SELECT id, terminal_id, acquirer_id, is_active, updated_date FROM terminal_acquirer"
        )

    def _restore(self) -> None:
        """As pg_restore does: the table is another one, with the rows of an earlier day."""
        if not self._bench.sql.execute("SELECT count(*) FROM saved").fetchone()[0]:  # type: ignore[index]
            return
        with self._bench.sql.transaction():
            self._run("DROP TABLE terminal_acquirer CASCADE")
            self._run("CREATE TABLE terminal_acquirer (LIKE saved INCLUDING ALL)")
            self._run("ALTER TABLE terminal_acquirer ALTER COLUMN is_active SET DEFAULT true,"
                      " ALTER COLUMN updated_date SET DEFAULT timezone('utc', current_timestamp)")  # fmt: skip
            self._run("INSERT INTO terminal_acquirer SELECT * FROM saved")
