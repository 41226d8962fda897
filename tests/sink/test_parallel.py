"""Parts of a partition's keys at work at a time: in order per key, each record once whichever process does a part."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from compactory.records import Partition
from compactory_connectors.postgres.jdbc_url import parse_url
from compactory_connectors.sink.applying import Applying, Handler
from compactory_connectors.sink.offsets import Moved, Offsets, open_sink
from compactory_connectors.sink.parallel import Parallel
from compactory_connectors.sink.record import Batch, Records, SinkRecord, part_of
from tests.sink.harness import Bench, count
from tests.source.workload import wait_until

PART = Partition("t", 0)
RECORDS = [SinkRecord("t", 0, n, f"g{n % 7}".encode(), str(n).encode(), 0) for n in range(40)]
BATCH = Batch(PART, 0, RECORDS, 40)
FEWER = Batch(PART, 0, RECORDS[:1], 1)
KEYS = Counter(f"g{n % 7}" for n in range(40))


@contextmanager
def process(bench: Bench, parallel: int, handler: Handler = count) -> Iterator[Any]:
    """What applies batches in one process."""
    with ExitStack() as stack:

        def applying() -> Applying:
            connection = open_sink(parse_url(bench.url).conninfo, bench.name)
            stack.callback(connection.close)
            return Applying(connection=connection, sink=bench.name, handler=handler)

        if parallel == 1:
            yield applying()
            return
        parts = Parallel(applying().connection, bench.name, [applying() for _ in range(parallel)])
        stack.callback(parts.close)
        yield parts


def begun(bench: Bench) -> None:
    offsets = Offsets(bench.sql, bench.name)
    offsets.rows([PART])
    offsets.begin(PART, 0, None)


def at_lock(bench: Bench) -> bool:
    waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(bench.rows(waiting))


@pytest.mark.parametrize("successor", [1, 2])
def test_a_process_with_another_number_of_parts_repeats_none(bench: Bench, successor: int) -> None:
    """Guarantee 16: one that believes to own the partition still, and one that was started with another number."""
    begun(bench)
    let, halted = threading.Event(), threading.Event()

    def halts(connection: psycopg.Connection[Any], records: Records) -> None:
        halted.set()
        assert let.wait(30)
        count(connection, records)

    failures: list[BaseException] = []

    def work(apply: Any, batch: Batch) -> None:
        try:
            apply(batch)
        except Moved:
            pass
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    assert part_of(RECORDS[0], 3) == 2  # no part of two has its number
    with process(bench, 3, halts) as old, process(bench, successor) as new:
        first = threading.Thread(target=work, args=[old.apply, FEWER])
        second = threading.Thread(target=work, args=[new.apply, BATCH])
        first.start()
        assert halted.wait(30)
        second.start()
        wait_until(lambda: at_lock(bench), what="the newer process at a lock")
        let.set()
        first.join()
        second.join()
        assert failures == []
        if (start := bench.offset("t")) != 40:
            assert start is not None
            new.apply(Batch(PART, start, RECORDS[start:], 40))
    bench.compare(KEYS)
    assert bench.offset("t") == 40


def test_parts_that_are_done_while_another_process_waits_for_the_lock_are_not_repeated(bench: Bench) -> None:
    """Guarantee 16: the lock's own snapshot does not show them."""
    begun(bench)
    done = [record for record in RECORDS if part_of(record, 99) == part_of(RECORDS[0], 99)]
    outcome: list[BaseException] = []

    def work(apply: Any) -> None:
        try:
            apply(BATCH)
        except BaseException as error:  # noqa: BLE001 - shown below
            outcome.append(error)

    with process(bench, 1) as applying, psycopg.connect(bench.url) as other:
        offsets = Offsets(other, bench.name)
        offsets.lock(PART, 0)
        thread = threading.Thread(target=work, args=[applying.apply])
        thread.start()
        wait_until(lambda: at_lock(bench), what="the process at the lock")
        offsets.begin_parts(BATCH, [part_of(done[0], 99)], 99)
        other.execute("UPDATE compactory.kafka_partition_parts SET until = 40")
        count(other, Records(done))
        other.commit()
        thread.join()
        assert [type(error) for error in outcome] == [Moved]
        applying.apply(BATCH)
    bench.compare(KEYS)


def test_the_records_of_a_key_are_applied_in_their_order(bench: Bench) -> None:
    """Guarantee 16, with each of three parts at its own pace."""
    topic = bench.topic()
    bench.produce(topic, [(f"k{n % 11}", str(n)) for n in range(400)])
    bench.sink(topic, parallel=3, batch=37)
    bench.wait_for_end(topic)
    bench.compare(Counter(f"k{n % 11}" for n in range(400)))


def test_a_process_that_passes_over_records_does_not_set_back_what_another_has_moved(bench: Bench) -> None:
    """Guarantee 16: nothing is locked for a part of the log without records; the update's own condition decides."""
    begun(bench)
    with process(bench, 1) as applying:
        applying.apply(BATCH)
        with pytest.raises(Moved):
            applying.move(Batch(PART, 0, [], 5))
    assert bench.offset("t") == 40
