"""A topic that is given more partitions: its keys belong elsewhere then, and what they left behind must go."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from compactory import Directory, GlobalStore
from compactory_connectors.kafka.partitioner import partition_of
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.source.config.connector import TopicCreation
from compactory_connectors.source.removals import cleanup
from compactory_connectors.source.runtime import offset_checks
from compactory_connectors.source.status.status import SourceState
from tests.source.conftest import Bench, Running
from tests.source.removals.test_removals import ROWS, held, status
from tests.source.workload import wait_until
from tests.stack.apache_kafka import new_admin


@pytest.fixture(autouse=True)
def quick_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores look for partitions every two seconds."""
    monkeypatch.setattr(cleanup, "_PARTITIONS_KNOWN", 4.0)


def grow(bench: Bench, partitions: int) -> None:
    """As kafka-topics.sh --alter --partitions does."""
    admin = new_admin({"bootstrap.servers": bench.kafka.bootstrap})
    admin.create_partitions([NewPartitions(bench.topic, partitions)])[bench.topic].result()
    wait_until(lambda: len(bench.kafka.topics([bench.topic])[bench.topic].partitions) == partitions, what="growth")


def places(bench: Bench) -> dict[tuple[bytes, int], bytes]:
    """What lives in each partition."""
    found: dict[tuple[Any, Any], Any] = {}
    for message in read(bench.kafka, bench.topic):
        found[message.key(), message.partition()] = message.value()
    return {place: value for place, value in found.items() if value is not None}


def settled(bench: Bench, partitions: int) -> bool:
    """Whether every row's key lives in its partition and nowhere else."""
    rows = bench.sql.execute("SELECT id FROM terminal_acquirer").fetchall()
    keys = {str(number).encode() for (number,) in rows}
    return set(places(bench)) == {(key, partition_of(key, partitions)) for key in keys}


def values(bench: Bench) -> dict[str, str]:
    rows = bench.sql.execute("SELECT id, acquirer_id FROM terminal_acquirer").fetchall()
    return {str(number): acquirer for number, acquirer in rows}


@pytest.mark.parametrize("running_meanwhile", [True, False])
def test_growth_is_held_and_put_right_when_approved(
    bench: Bench, running_meanwhile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 10: order within a key, also across partitions; stores have every key all the time."""
    monkeypatch.setattr(offset_checks, "TOPIC_CHECK_INTERVAL", 0.2)
    one = TopicCreation(partitions=1, replication_factor=1)
    bench.sql.execute(ROWS.format(300))
    running = bench.start(topics=one)
    bench.wait_for_records(300)
    if not running_meanwhile:
        running.stop()
    with GlobalStore(bench.kafka.bootstrap, [Directory("d", topic=bench.topic)]) as store:
        grow(bench, 3)
        if not running_meanwhile:
            running = bench.start(topics=one)
        removal = held(running)
        assert removal.id == "partitions-1-3"
        bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id <= 100")
        bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 300")
        assert len(bench.records()) == 300
        watch = Watch(store, len(store["d"]))
        running.source.orders.approve("public.terminal_acquirer", removal.id)
        wait_until(lambda: watch.look() or settled(bench, 3), what="every key at home, and there alone")
        wait_until(lambda: status(running).state is SourceState.RUNNING, what="RUNNING")
        bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'C' WHERE id <= 50")
        wait_until(lambda: watch.look() or shown(store) == values(bench), what="the store")
        assert watch.least == 299
    with GlobalStore(bench.kafka.bootstrap, [Directory("d", topic=bench.topic)]) as fresh:
        assert shown(fresh) == values(bench)


class Watch:
    """How few entries a store ever had."""

    def __init__(self, store: GlobalStore, entries: int) -> None:
        self._store = store
        self.least = entries

    def look(self) -> bool:
        """Look once; always False."""
        self.least = min(self.least, len(self._store["d"]))
        return False


def shown(store: GlobalStore) -> dict[str, str]:
    return {key: value["acquirerId"] for key, value in store["d"].items()}


def test_sweeps_that_know_the_table_still_find_what_had_to_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 10: misplaced copies stay until readers know of the partitions; sweeps forget none of them."""
    monkeypatch.setattr(offset_checks, "TOPIC_CHECK_INTERVAL", 0.2)
    one = TopicCreation(partitions=1, replication_factor=1)
    bench.sql.execute(ROWS.format(100))
    running = bench.start(topics=one, sweep_interval_ms=3_600_000)
    bench.wait_for_records(100)
    grow(bench, 3)
    running.source.orders.approve("public.terminal_acquirer", held(running).id)
    wait_until(lambda: settled(bench, 3), what="every key at home, and there alone")


def test_growth_before_the_first_run_is_nobodys_business(bench: Bench) -> None:
    """A first load finds misplaced copies in a topic, and clears it up."""
    bench.sql.execute(ROWS.format(50))
    bench.once(topics=TopicCreation(partitions=1, replication_factor=1))
    grow(bench, 4)
    bench.once(name=f"{bench.prefix}again")
    assert settled(bench, 4)
    assert len(bench.records()) > 100


class Killed(BaseException):
    """Ends the whole source, as a kill does; an ordinary error is its table's alone."""


def test_a_kill_in_the_middle_is_gone_on_from(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 9: approved once; what is left is done by the next run."""
    bench.sql.execute(ROWS.format(200))
    bench.once(topics=TopicCreation(partitions=1, replication_factor=1))
    grow(bench, 2)
    running: Running = bench.start(batch_max_rows=10)
    removal = held(running)
    from compactory_connectors.kafka.publisher import Publisher

    publish, calls = Publisher.publish, []

    def dying(self: Publisher, *args: Any) -> None:
        calls.append(args)
        if len(calls) == 8:
            raise Killed
        publish(self, *args)

    monkeypatch.setattr(Publisher, "publish", dying)
    running.source.orders.approve("public.terminal_acquirer", removal.id)
    wait_until(lambda: running.ended, what="the end")
    with pytest.raises(Killed):
        running.stop()
    monkeypatch.undo()
    assert 200 < len(bench.records()) < 400
    bench.once(batch_max_rows=10)
    assert settled(bench, 2)
