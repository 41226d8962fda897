"""A sink in this process: what is applied, from where on, and what stops it."""

from __future__ import annotations

from collections import Counter

import pytest

from compactory.errors import ConfigError
from compactory.kafka.client import Message, TopicPartition
from compactory.records import Partition
from compactory_connectors.kafka.consumer_group import Group
from compactory_connectors.sink import SinkStopped, TransactionalSink
from compactory_connectors.sink.operators import set_position
from compactory_connectors.sink.record import Batch
from compactory_connectors.sink.statements import Moved, SinkTable
from tests.sink.harness import Bench, committed
from tests.source.workload import wait_until
from tests.store.topics import Topics


def test_each_record_is_applied_once_and_a_new_sink_goes_on(bench: Bench) -> None:
    """Guarantee 16: rows and offset in one transaction."""
    topic = bench.topic(2)
    bench.produce(topic, [(f"k{n % 3}", str(n)) for n in range(30)])
    sink = bench.sink(topic)
    bench.wait_for_end(topic)
    assert sink.stop()
    bench.produce(topic, [(f"k{n % 3}", str(n)) for n in range(30, 40)])
    bench.sink(topic)
    bench.wait_for_end(topic)
    bench.compare(Counter(f"k{n % 3}" for n in range(40)))


def test_the_databases_offset_decides_and_kafkas_counts_for_a_row_never_used(bench: Bench) -> None:
    """Guarantee 16: a database that was restored gets the records since; one that is ahead gets none twice."""
    topic = bench.topic()
    bench.produce(topic, [("k", str(n)) for n in range(10)])
    consumer = bench.kafka.member({"group.id": f"compactory-sink-{bench.name}"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    consumer.close()
    sink = bench.sink(topic)
    bench.wait_for_values(*(str(n) for n in range(4, 10)))
    assert sink.stop()
    bench.sql.execute("DELETE FROM effects WHERE value::int >= 6")
    assert set_position(bench.sql, bench.kafka, bench.name, Partition(topic, 0), "6") == 6
    sink = bench.sink(topic)
    bench.wait_for_values(*(str(n) for n in range(4, 10)))
    bench.sql.execute("DELETE FROM effects WHERE value::int >= 8")  # under a sink that runs
    assert set_position(bench.sql, bench.kafka, bench.name, Partition(topic, 0), "8") == 8
    bench.produce(topic, [("k", "10")])
    bench.wait_for_values(*(str(n) for n in range(4, 11)))
    wait_until(lambda: sink.board.picture()["seeks"] == 1, what="the seek")


def test_a_gap_of_a_compacted_topic_or_of_a_transaction_is_no_mismatch(bench: Bench) -> None:
    topic = bench.topic()
    producer = bench.kafka.producer({}, {"transactional.id": bench.unique("t")}, lambda _: None)
    producer.init_transactions(30)
    for number in range(3):
        producer.begin_transaction()
        producer.produce(topic, str(number), "k")
        if number == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    sink = bench.sink(topic)
    bench.wait_for_end(topic)  # past the mark behind the last record
    assert bench.values() == ["0", "2"]
    assert sink.board.picture()["seeks"] == 0


def test_the_leader_epoch_of_the_last_record_counts_for_its_own_offset(bench: Bench) -> None:
    """Guarantee 16: marks of a transaction are passed over; a sink of before 0016 moves the offset alone."""
    topic = bench.topic()
    Topics(bench.address, bench.unique).commit(topic, ("a", "1"), ("b", "2"))
    sink = bench.sink(topic)
    bench.wait_for_end(topic)
    sink.stop()
    offsets, partition = SinkTable(bench.sql, bench.name), Partition(topic, 0)
    assert offsets.rows([partition])[partition].located(0) == (3, 2, 0)
    bench.sql.execute('UPDATE compactory.kafka_partitions SET "offset" = 9')
    assert offsets.rows([partition])[partition].located(0) == (9, 9, None)
    offsets.move(Batch(partition, 9, [], 12))  # marks that come next make an epoch no more valid
    assert offsets.rows([partition])[partition].located(0) == (12, 12, None)


def test_records_that_were_applied_may_be_deleted_up_to_the_marks_behind_them(bench: Bench) -> None:
    """Guarantee 16: the log then begins at the offset, and behind the end of the last record."""
    topic = bench.topic()
    topics = Topics(bench.address, bench.unique)
    topics.commit(topic, ("a", "1"))
    sink = bench.sink(topic)
    bench.wait_for_end(topic)
    assert sink.stop()
    topics.cut(topic, 2)
    topics.commit(topic, ("b", "2"))
    bench.sink(topic)
    bench.wait_for_values("1", "2")


def test_a_topic_made_again_stops_the_sink_with_the_remedy(bench: Bench) -> None:
    """Guarantee 16: an offset of another topic is never gone on with."""
    topic = bench.topic()
    bench.produce(topic, [("k", "1")])
    sink = bench.sink(topic)
    bench.wait_for_values("1")
    admin = bench.kafka._current_client()
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: not bench.kafka.topics([topic]), what="the deletion")
    bench.kafka.create_topic(topic, partitions=1)
    with pytest.raises(SinkStopped, match=f"created again.*sink offsets set {bench.name} {topic} 0 earliest"):
        sink.wait(30)
    assert not sink.alive


def test_records_deleted_before_they_were_applied_stop_it(bench: Bench) -> None:
    """Guarantee 16: a loss is never passed over in silence."""
    topic = bench.topic()
    bench.produce(topic, [("k", str(n)) for n in range(5)])
    sink = bench.sink(topic)
    bench.wait_for_end(topic)
    assert sink.stop()
    bench.produce(topic, [("k", str(n)) for n in range(5, 10)])
    admin = bench.kafka._current_client()
    for future in admin.delete_records([TopicPartition(topic, 0, 7)]).values():
        future.result()
    sink = bench.sink(topic)
    with pytest.raises(SinkStopped, match="records 5 to 6 were deleted"):
        sink.wait(30)


def test_what_is_set_wrongly_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"transaction_timeout must be between 0 and max.poll.interval.ms"):
        bench.sink("t", transaction_timeout=301)
    with pytest.raises(ConfigError, match="topic 'nowhere' does not exist"):
        bench.sink("nowhere")

    async def write(conn: object, records: object) -> None: ...

    with pytest.raises(ConfigError, match=r"(?s)handler is async or a generator.*prepare is async or a generator"):
        TransactionalSink(bench.kafka, bench.url, ["t"], write, name="s", prepare=lambda _: (yield))


def test_a_topic_that_is_deleted_keeps_no_other_waiting(bench: Bench) -> None:
    """Made again it stops the sink, as its offsets are of other records."""
    gone, kept = bench.topic(), bench.topic()
    bench.produce(gone, [("k", "1")])
    sink = bench.sink([gone, kept], properties={"topic.metadata.refresh.interval.ms": 300})
    bench.wait_for_end(gone)
    admin = bench.kafka._current_client()
    admin.delete_topics([gone])[gone].result()
    wait_until(lambda: not bench.kafka.topics([gone]), what="the deletion")
    wait_until(lambda: {part["topic"] for part in sink.board.picture()["partitions"]} == {kept}, what="the revocation")
    bench.produce(kept, [("k", "2")])
    bench.wait_for_end(kept)
    bench.kafka.create_topic(gone, partitions=1)
    with pytest.raises(SinkStopped, match="created again"):
        sink.wait(30)


def test_a_backup_from_before_the_first_run_gets_all_records(bench: Bench) -> None:
    """Guarantee 16: what a sink committed to Kafka, for those who watch, never counts for a database."""
    topic = bench.topic()
    bench.produce(topic, [("k", str(n)) for n in range(5)])
    sink = bench.sink(topic)
    bench.wait_for_end(topic)
    assert sink.stop()
    assert committed(bench, topic) == 5
    bench.sql.execute("TRUNCATE counters, effects, compactory.kafka_partitions")
    bench.sink(topic)
    bench.wait_for_values(*(str(n) for n in range(5)))


def test_records_read_before_a_rebalance_are_not_taken_for_those_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 16: a partition that goes and comes back while records are gathered goes on where the database is."""
    topic = bench.topic()
    bench.produce(topic, [("k", str(n)) for n in range(5)])
    messages = Group._messages
    came_back: list[int] = []

    class Consumer:
        def __init__(self, group: Group) -> None:
            self._group, self._inner = group, group._consumer

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

        def consume(self, limit: int, timeout: float) -> list[object]:
            found = self._inner.consume(limit, timeout)
            if not came_back and found:  # meanwhile another process had the partition, and applied two
                came_back.append(1)
                set_position(bench.sql, bench.kafka, bench.name, Partition(topic, 0), "2")
                self._group._revoked(self._inner, [TopicPartition(topic, 0)])
                self._group._assigned(self._inner, [TopicPartition(topic, 0)])
            return found

    def gathered(self: Group, limit: int, timeout: float) -> list[Message]:
        if not isinstance(self._consumer, Consumer):
            self._consumer = Consumer(self)  # type: ignore[assignment]
        return messages(self, limit, timeout)

    monkeypatch.setattr(Group, "_messages", gathered)
    bench.sink(topic)
    bench.wait_for_end(topic)
    assert came_back
    assert bench.values() == ["2", "3", "4"]


def test_records_from_elsewhere_than_the_seek_are_not_applied(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 16: a client that loses a seek, as one does that still looks up where a partition begins."""
    topic = bench.topic()
    bench.produce(topic, [("k", str(n)) for n in range(5)])
    sink = bench.sink(topic)
    bench.wait_for_end(topic)
    assert sink.stop()
    bench.produce(topic, [("k", "5")])
    settle, lost = Group._seek_to_start_offsets, []

    class Deaf:
        def __init__(self, consumer: object) -> None:
            self._inner = consumer

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

        def seek(self, partition: TopicPartition) -> None:
            lost.append(partition)

    def settled(self: Group) -> None:
        consumer = self._consumer
        if not lost:
            self._consumer = Deaf(consumer)  # type: ignore[assignment]
        settle(self)
        self._consumer = consumer

    monkeypatch.setattr(Group, "_seek_to_start_offsets", settled)
    bench.sink(topic)
    bench.wait_for_end(topic)
    assert lost
    bench.compare(Counter({"k": 6}))


def test_a_process_that_passes_over_records_does_not_set_back_what_another_has_moved(bench: Bench) -> None:
    """Guarantee 16: nothing is locked for a part of the log without records; the update's own condition decides."""
    partition, offsets = Partition("t", 0), SinkTable(bench.sql, bench.name)
    offsets.rows([partition])
    offsets.begin(partition, 40, None)
    with pytest.raises(Moved):
        offsets.move(Batch(partition, 0, [], 5))
    assert bench.offset("t") == 40
