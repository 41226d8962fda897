"""The log of deletions is kept as long as a connector needs it, and no longer."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from compactory.errors import CompactoryError
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.source.offsets.stored_offsets import read_offsets
from compactory_connectors.source.operations.pruning import prune
from tests.source.conftest import Bench
from tests.source.removals.test_removals import ROWS, adopted, living
from tests.source.workload import wait_until

NOW = timedelta()


def logged(bench: Bench) -> int:
    (count,) = bench.sql.execute("SELECT count(*) FROM compactory.deleted_rows").fetchone() or (0,)
    return count


def pruned(bench: Bench, age: timedelta = NOW, **options: bool) -> tuple[int, str | None]:
    [found] = prune(bench.sql, read_offsets(bench.kafka), age, **options)
    assert found.table == "public.terminal_acquirer"
    return found.removed, found.problem


def delete(bench: Bench, *ids: int) -> None:
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = ANY(%s)", [list(ids)])
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = ANY(%s)", [list(ids)])


def poll_until_pruned(bench: Bench, removed: int, *connectors: str) -> None:
    """A deletion may go when a crash of Postgres can't take back what the offset rests on; polls find that out."""

    def polled() -> bool:
        for name in connectors:
            bench.once(name=name, topic_prefix=name if name == bench.prefix else f"{name}-")
        return pruned(bench) == (removed, None)

    wait_until(polled, what=f"{removed} deletions pruned")


def test_what_some_connector_has_not_polled_stays(bench: Bench) -> None:
    """Guarantee 10: two connectors poll the table, and one of them is behind."""
    bench.sql.execute(ROWS.format(100))
    adopted(bench)
    delete(bench, 1)
    assert pruned(bench) == (0, "no connector of this Kafka cluster polls it")
    for name in ("one", "other"):
        bench.once(name=f"{bench.prefix}{name}", topic_prefix=f"{bench.prefix}{name}-")
    delete(bench, 2, 3)
    bench.once(name=f"{bench.prefix}one", topic_prefix=f"{bench.prefix}one-")
    assert pruned(bench, dry_run=True) == (1, None)
    assert pruned(bench, timedelta(hours=1)) == (0, None)
    assert pruned(bench) == (1, None)
    assert logged(bench) == 2
    bench.once(name=f"{bench.prefix}other", topic_prefix=f"{bench.prefix}other-")
    bench.topic = f"{bench.prefix}other-terminal_acquirer"
    assert living(bench) == set(range(4, 101))
    poll_until_pruned(bench, 2, f"{bench.prefix}one", f"{bench.prefix}other")
    assert logged(bench) == 0


def test_a_transaction_that_began_before_the_last_poll_is_not_behind_it(bench: Bench) -> None:
    """Guarantee 10: its deletions are logged under an id that is older than the offset."""
    bench.sql.execute(ROWS.format(10))
    adopted(bench)
    with psycopg.connect(bench.url) as late:
        late.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 1")
        late.execute("DELETE FROM terminal_acquirer WHERE id = 1")
        bench.once()
        late.commit()
    assert pruned(bench) == (0, None)
    bench.once()
    assert living(bench) == set(range(2, 11))
    poll_until_pruned(bench, 1, bench.prefix)


def test_an_unfinished_load_and_an_unreadable_offset_keep_everything(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sql.execute(ROWS.format(30))
    adopted(bench)
    delete(bench, 1)
    publish, calls = Publisher.publish, []

    def dying(self: Publisher, *args: object) -> None:
        calls.append(args)
        if len(calls) > 1:
            raise CompactoryError("killed")
        publish(self, *args)

    monkeypatch.setattr(Publisher, "publish", dying)
    with pytest.raises(CompactoryError, match="killed"):
        bench.once(batch_max_rows=10)
    monkeypatch.undo()
    assert pruned(bench)[1] == f"connector {bench.prefix} has not finished its load"
    bench.once()
    [stored] = [each for each in read_offsets(bench.kafka) if each.connector == bench.prefix]
    publisher = Publisher(bench.kafka, "x", "compactory-offsets", transactions=False)
    publisher.publish(bench.topic, [], (stored.key, b"[]"))
    publisher.close()
    assert pruned(bench)[1] == f"the offset of connector {bench.prefix} can't be read"


def test_an_idle_source_stores_what_has_become_durable(bench: Bench) -> None:
    """Guarantee 10: the last deletions may be pruned without another change of the table; then it sleeps."""
    bench.sql.execute(ROWS.format(10))
    adopted(bench)
    running = bench.start()
    bench.wait_for_records(10)
    for number in range(1, 4):
        delete(bench, number)
        wait_until(lambda: pruned(bench) == (1, None), what=f"deletion {number} pruned")
    running.stop()
