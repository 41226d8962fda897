"""One question for many tables: what it says to be unchanged is unchanged, whatever happened to them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from compactory_connectors.schema import Adoption, adopt, install
from compactory_connectors.source.planning.planner import plan_tables
from compactory_connectors.source.polling.change_detector import ChangeDetector
from compactory_connectors.source.polling.table_reader import open_reader
from compactory_connectors.source.postgres.server import Server
from tests.source.poller import cleared, config, settings
from tests.stack.postgres_versions import needs

STAMPED, PLAIN, PARTED = "stamped", "plain", "parted"
PLAIN_TABLE = "CREATE TABLE {} (id int PRIMARY KEY, v text, updated_date timestamp NOT NULL DEFAULT now())"


@dataclass
class Asked:
    """Three tables, all polled, and the probe that is asked about them."""

    url: str
    server: Server = field(init=False)
    detector: ChangeDetector = field(init=False)

    def __post_init__(self) -> None:
        self.sql = psycopg.connect(self.url, autocommit=True)
        self.sql.execute(PLAIN_TABLE.format(PLAIN))
        for name, parts in ((STAMPED, ""), (PARTED, " PARTITION BY RANGE (id)")):
            self.sql.execute(
                f"CREATE TABLE {name} (id int PRIMARY KEY, v text, is_active bool NOT NULL DEFAULT true,"
                f" updated_date timestamp NOT NULL DEFAULT now()){parts}"
            )
        for number in range(2):
            bounds = f"FOR VALUES FROM ({number * 100}) TO ({number * 100 + 100})"
            self.sql.execute(f"CREATE TABLE {PARTED}{number} PARTITION OF {PARTED} {bounds}")
        install(self.sql)
        for name in (STAMPED, PARTED):
            adopt(self.sql, Adoption(table=name, key=("id",), active="is_active"))
        for name in (STAMPED, PARTED, PLAIN):
            self.sql.execute(f"INSERT INTO {name} (id, v) SELECT n, 'a' FROM generate_series(1, 20) n")
        self.server = Server.open({"conninfo": self.url})
        given = settings(self.url, "timestamp", timestamp__column__name="updated_date")
        given |= {"table.whitelist": f"{STAMPED},{PARTED},{PLAIN}", "table.types": "TABLE,PARTITIONED TABLE"}
        connector = config(given)
        self.plans = {plan.name: plan for plan in plan_tables(self.server, connector)}
        assert set(self.plans) == {STAMPED, PARTED, PLAIN}
        assert [name for name, plan in self.plans.items() if plan.adopted] == [STAMPED, PARTED]
        self.readers = {name: open_reader(self.server, plan, None, ("t", None)) for name, plan in self.plans.items()}
        self.detector = ChangeDetector(self.server)
        assert self.suspects() == set(self.plans), "nothing is known before the first look"
        for name in self.plans:
            self.poll(name)
        self.suspects()
        assert self.suspects() == set()

    def suspects(self) -> set[str]:
        oids = self.detector.probe([*self.plans.values()]).suspects
        return {name for name, plan in self.plans.items() if plan.oid in oids}

    def poll(self, name: str) -> int:
        """How many records a poll of the table brings."""
        sent = 0
        for batch in self.readers[name].batches():
            sent += len(batch.records)
            self.readers[name].acknowledge(batch)
        return sent

    def close(self) -> None:
        self.sql.close()
        self.server.close()


@pytest.fixture
def asked(shared: str) -> Iterator[Asked]:
    asked = Asked(cleared(shared))
    yield asked
    asked.close()


@pytest.mark.parametrize("name", [STAMPED, PARTED, PLAIN])
def test_a_change_makes_its_table_a_suspect_once(asked: Asked, name: str) -> None:
    asked.sql.execute(f"UPDATE {name} SET v = 'b' WHERE id = 3")
    assert asked.suspects() == {name}
    asked.poll(name)
    asked.sql.execute("CREATE TABLE other ()")
    asked.suspects()
    assert asked.suspects() == set()


@pytest.mark.parametrize("name", [STAMPED, PARTED, PLAIN])
def test_a_change_that_commits_long_after_it_was_made(asked: Asked, name: str) -> None:
    """Guarantee 8: its transaction was running at one look and at the next, and has a lower id than others by then."""
    with psycopg.connect(asked.url) as late:
        late.execute(f"UPDATE {name} SET v = 'late' WHERE id = 3")
        for number in range(3):
            asked.sql.execute(f"UPDATE {name} SET v = 'b' WHERE id = {10 + number}")
            assert asked.suspects() == {name}
            asked.poll(name)
        late.commit()
    assert asked.suspects() == {name}
    assert asked.poll(name) == 1


@pytest.mark.parametrize("name", [STAMPED, PARTED, PLAIN])
def test_a_change_within_a_savepoint(asked: Asked, name: str) -> None:
    """Guarantee 8."""
    with psycopg.connect(asked.url) as late:
        late.execute("SELECT pg_current_xact_id()")
        late.execute("SAVEPOINT one")
        late.execute(f"UPDATE {name} SET v = 'late' WHERE id = 3")
        asked.sql.execute("CREATE TABLE other ()")
        asked.suspects()
        late.execute("RELEASE one")
        late.commit()
    assert name in asked.suspects()


def test_a_hard_delete_is_a_change_where_it_is_logged(asked: Asked) -> None:
    """Guarantee 10."""
    for name in (STAMPED, PARTED):
        asked.sql.execute(f"UPDATE {name} SET is_active = false WHERE id = 3")
        asked.suspects()
        asked.poll(name)
        asked.suspects()
        with psycopg.connect(asked.url) as late:
            late.execute(f"DELETE FROM {name} WHERE id = 3")
            asked.sql.execute(f"UPDATE {PLAIN} SET v = 'c' WHERE id = 3")
            assert asked.suspects() == {PLAIN}
            late.commit()
        assert name in asked.suspects()
        assert asked.poll(name) == 1


UNSTAMPED = "ALTER TABLE {0} DISABLE TRIGGER USER; UPDATE {0} SET v = 'x'; ALTER TABLE {0} ENABLE TRIGGER USER"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (STAMPED, UNSTAMPED.format(STAMPED)),
        (PARTED, UNSTAMPED.format("parted1")),
        (STAMPED, "TRUNCATE plain; ALTER TABLE stamped ADD COLUMN w int"),
        (PLAIN, "ALTER TABLE plain ALTER COLUMN v TYPE varchar(9)"),
        (PLAIN, "TRUNCATE plain"),
        (PARTED, "ALTER TABLE parted DETACH PARTITION parted1"),
        (PARTED, "CREATE TABLE parted2 PARTITION OF parted FOR VALUES FROM (200) TO (300)"),
        (STAMPED, "ALTER TABLE stamped RENAME TO another"),
    ],
)
def test_what_no_stamp_tells_of(asked: Asked, name: str, change: str) -> None:
    """Guarantee 8: rows of which the catalogue alone says that something has become of them."""
    asked.sql.execute(change)
    assert name in asked.suspects()


def test_a_dropped_table_is_no_problem_of_the_others(asked: Asked) -> None:
    asked.sql.execute("DROP TABLE stamped")
    assert asked.suspects() == set(asked.plans)
    gone = asked.plans.pop(STAMPED)
    assert gone.oid not in asked.detector.probe([*asked.plans.values()]).suspects
    asked.suspects()
    asked.sql.execute(f"UPDATE {PLAIN} SET v = 'b'")
    assert asked.suspects() == {PLAIN}


def test_a_locked_table_keeps_nobody_waiting(asked: Asked) -> None:
    """All are suspects then: each is polled by itself, and only that one waits."""
    with psycopg.connect(asked.url) as other:
        other.execute(f"LOCK TABLE {PLAIN}")
        asked.sql.execute("CREATE TABLE other ()")
        assert asked.suspects() == set(asked.plans)
    asked.suspects()
    assert asked.suspects() == set()


def test_no_statistics_make_it_read_a_whole_table(asked: Asked) -> None:
    """All rows have one stamp, as after a first load, and every transaction that runs is looked for."""
    needs(15)
    asked.sql.execute("INSERT INTO stamped (id, v) SELECT n, 'a' FROM generate_series(100, 20000) n")
    asked.sql.execute("ANALYZE stamped")
    asked.suspects()
    asked.poll(STAMPED)
    with psycopg.connect(asked.url) as other:
        other.execute("SELECT pg_current_xact_id()")
        asked.sql.execute("CREATE TABLE other ()")
        asked.suspects()
        before = _rows_read(asked.sql)
        for number in range(5):
            asked.sql.execute(f"CREATE TABLE other{number} ()")
            assert asked.suspects() == set()
        assert _rows_read(asked.server.connection, asked.sql) - before < 1000


def _rows_read(*connections: psycopg.Connection[Any]) -> int:
    for connection in connections:
        connection.execute("SELECT pg_stat_force_next_flush()")
        connection.execute("SELECT 1")
    query = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'stamped'"
    return int(connections[-1].execute(query).fetchone()[0])


@pytest.mark.parametrize("seed", range(4))
def test_random_histories(asked: Asked, seed: int) -> None:
    """Guarantee 8: whatever a table's next poll would bring, a look had said that it may."""
    chance = random.Random(seed)
    writers = [psycopg.connect(asked.url) for _ in range(4)]
    behind: set[str] = set()
    try:
        for _ in range(120):
            _act(chance, chance.choice(writers))
            if chance.random() < 0.4:
                behind |= asked.suspects()
                for name in asked.plans:
                    found = asked.readers[name].count()
                    assert not found or name in behind, (seed, name, found)
                    if name in behind and chance.random() < 0.7:
                        asked.poll(name)
                        behind.discard(name)
    finally:
        for writer in writers:
            writer.close()


def _act(chance: random.Random, writer: psycopg.Connection[Any]) -> None:
    name, row = chance.choice([STAMPED, PARTED, PLAIN]), chance.randrange(1, 21)
    # rows are shared out among the writers, so that none waits for another
    row = row - row % 4 + id(writer) % 4 if row > 4 else row
    writer.execute("SET lock_timeout = '5ms'")
    action = chance.choice(["write", "write", "write", "savepoint", "back", "commit", "commit", "rollback"])
    try:
        if action == "write":
            writer.execute(f"UPDATE {name} SET v = v || 'x' WHERE id = {row}")
        elif action == "savepoint":
            writer.execute("SAVEPOINT s")
        elif action == "back":
            writer.execute("SAVEPOINT t; ROLLBACK TO t")
        elif action == "commit":
            writer.commit()
        else:
            writer.rollback()
    except psycopg.errors.LockNotAvailable:
        writer.rollback()
