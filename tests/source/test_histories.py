"""Whatever a history does to a table: once it rests, the topic is the table. See ``history``."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.source.offsets.offset import SourceOffset
from compactory_connectors.source.offsets.offset_parts import SeenSnapshot
from compactory_connectors.source.polling import conditions, table_reader
from compactory_connectors.source.polling.conditions import Conditions
from compactory_connectors.source.postgres.server import Server
from tests.source.history import Layout, Shared, create, living
from tests.source.history_follower import Follower
from tests.source.history_writer import Writer
from tests.source.poller import cleared
from tests.source.proof import LONG, PROOF

LAYOUTS = [
    Layout(partitioned=partitioned, soft=soft, adopted=adopted)
    for partitioned in (False, True)
    for soft in (False, True)
    for adopted in (False, True)
]


def one_history(url: str, layout: Layout, seed: int, steps: int) -> None:
    """Run a history and compare."""
    with psycopg.connect(url, autocommit=True) as connection:
        create(connection, layout)
    seeded = random.Random(seed)
    shared = Shared(layout)
    writers = [Writer(url, f"w{number}", seeded, shared) for number in range(4)]
    follower = Follower(url, layout, shared.log)
    try:
        for _ in range(steps):
            _step(seeded, writers, follower)
        for writer in writers:
            writer.finish()
        for _ in range(2):
            follower.settle()
        if not layout.adopted:
            follower.sweep()  # what finds hard deletes of such a table in time
        assert follower.values() == living(url, layout)
        assert not follower.unexplained, "records were sent twice, and nothing says why"
    except BaseException:
        print("\n".join(shared.log))
        print(f"{layout}, history {seed}")
        raise
    finally:
        follower.close()
        for writer in writers:
            writer.close()
        _roll_back_prepared(url)


def _step(seeded: random.Random, writers: list[Writer], follower: Follower) -> None:
    kind = seeded.random()
    if kind < 0.28:
        follower.step(seeded.choice([1, 3, 7, 25, 10_000]))
    elif kind < 0.31:
        follower.kill()
    elif kind < 0.34:
        seeded.choice(writers).alone()
    elif kind < 0.36:
        for writer in writers:
            writer.finish()
    else:
        seeded.choice(writers).step()


def _roll_back_prepared(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        left = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall()
        for (gid,) in left:
            connection.execute(f"ROLLBACK PREPARED '{gid}'")


@pytest.mark.parametrize("seconds", [pytest.param(0.8, id="short"), LONG])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_topic_ends_as_the_table(shared: str, layout: Layout, seconds: float, seeded: random.Random) -> None:
    """Guarantee 8: interleaved transactions, savepoints, exception blocks, prepared ones, cascades, COPY, upserts, row
    movement, attached and detached partitions, rewrites, replication roles, triggers that are off, clocks set back;
    the source killed between any two pages. Guarantee 9: what goes out twice is explained.
    """
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        one_history(cleared(shared), layout, seeded.getrandbits(32), steps=seeded.choice([60, 200, 400]))


def _with_shape(offset: SourceOffset, shape: str) -> SourceOffset:
    return replace(offset, shape=shape)


def _without_running(column: sql.Composable, snapshot: Snapshot) -> sql.Composable:
    return sql.SQL("{} >= {}::text::xid8").format(column, sql.Literal(str(snapshot.xmax)))


def _by_timestamp(where: Conditions, seen_snapshot: SeenSnapshot) -> sql.Composable:
    del where, seen_snapshot
    return sql.SQL("t.changed > (SELECT max(changed) - interval '1 minute' FROM terminal WHERE isfinite(changed))")


def _as_if_no_savepoints(server: Server, snapshot: Snapshot, xids: object) -> set[int]:
    del server, xids
    return {*range(snapshot.xmin, snapshot.xmax)} - {*snapshot.xip}


def _without_pages(offset: SourceOffset) -> bytes:
    return DUMPS(offset.completed(offset.partial_polls[-1].seen_snapshot) if offset.partial_polls else offset)


DUMPS = SourceOffset.dumps
BROKEN = {
    "running transactions are forgotten": (conditions, "_not_in_snapshot", _without_running, True),
    "timestamps decide": (Conditions, "_unseen", _by_timestamp, False),
    "savepoints have no ids": (table_reader, "seen_xids", _as_if_no_savepoints, False),
    "partitions are always the same": (SourceOffset, "for_partitions", lambda offset, _: offset, False),
    "the table is always the same": (SourceOffset, "for_shape", _with_shape, True),
    "a killed source has seen what it read": (SourceOffset, "dumps", _without_pages, True),
}
SLOW = [*BROKEN][3:]


@pytest.mark.parametrize("name", [pytest.param(name, marks=PROOF if name in SLOW else []) for name in BROKEN])
def test_a_source_that_is_broken_on_purpose_is_found_out(
    shared: str, name: str, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The histories are nasty enough: each of these mistakes loses changes within some of them, most often a few."""
    where, what, mistake, adopted = BROKEN[name]
    monkeypatch.setattr(where, what, mistake)
    layout = Layout(partitioned=True, soft=True, adopted=adopted)

    def many() -> None:
        for _ in range(300):
            one_history(cleared(shared), layout, seeded.getrandbits(32), steps=200)

    with pytest.raises(AssertionError):
        many()
