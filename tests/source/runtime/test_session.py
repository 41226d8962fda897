"""Sessions and their publisher under bad circumstances: full queues, rivals, garbage, changes of the table, stops."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import orjson
import psycopg
import pytest

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.schema import Adoption, adopt, install
from compactory_connectors.source.config.connector import TopicCreation
from compactory_connectors.source.config.selection import TableName, TableSelection
from compactory_connectors.source.offsets.offset import offset_key
from compactory_connectors.source.offsets.topics import OFFSETS_TOPIC, ensure_topics, stored_values
from compactory_connectors.source.runtime.offset_checks import TOPIC_CHECK_INTERVAL
from compactory_connectors.source.status.status import SourceState
from tests.source.conftest import Bench
from tests.source.workload import wait_until
from tests.stack.apache_kafka import new_admin


@pytest.fixture
def topic(kafka: str, unique: Callable[[str], str]) -> str:
    name = unique("t")
    ensure_topics(Kafka(kafka), {name: TopicCreation(partitions=1, replication_factor=1)}, create=True)
    return name


@pytest.mark.parametrize("transactions", [True, False])
def test_a_page_larger_than_the_producers_queue(kafka: str, topic: str, transactions: bool) -> None:
    """The user's own queue.buffering.max.messages slows a page down and does not end the source."""
    small = {"queue.buffering.max.messages": 10, "batch.num.messages": 2}
    publisher = Publisher(Kafka(kafka), topic, OFFSETS_TOPIC, transactions=transactions, overrides=small)
    publisher.open()
    publisher.publish(topic, [(b"%d" % number, b"x") for number in range(2000)], (topic.encode(), b"offset"))
    publisher.close()
    assert len(list(read(Kafka(kafka), topic))) == 2000


def test_a_closed_publisher_leaves_no_threads(kafka: str, topic: str) -> None:
    """Outages open one after the other; the cyclic garbage collector may not run for long."""
    _open_and_close(kafka, topic)
    before = _threads()
    gc.disable()
    try:
        for _ in range(5):
            _open_and_close(kafka, topic)
        assert _threads() <= before + 2
    finally:
        gc.enable()


def _open_and_close(kafka: str, topic: str) -> None:
    publisher = Publisher(Kafka(kafka), topic, OFFSETS_TOPIC)
    publisher.open()
    publisher.close()


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize(
    "change", [{"seen_snapshot": 5}, {"durable": "x"}, {"partial_polls": [7]}, {"partial_polls": None}, {"phase": "x"}]
)
def test_an_offset_of_something_else_is_an_error_with_its_remedy(bench: Bench, change: dict[str, object]) -> None:
    bench.add("T1")
    bench.once()
    key = offset_key(bench.prefix, bench.url.rsplit("/", 1)[1], "public", "terminal_acquirer")
    value = stored_values(bench.kafka)[key]
    publisher = Publisher(bench.kafka, bench.prefix, OFFSETS_TOPIC, transactions=False)
    publisher.publish(bench.topic, [], (key, orjson.dumps(orjson.loads(value) | change)))
    publisher.close()
    with pytest.raises(CompactoryError, match="source offsets reset"):
        bench.once()


def test_a_stop_is_heard_between_the_pages_of_a_load(bench: Bench) -> None:
    """And the next run goes on there: each row is sent once."""
    bench.sql.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
                      " SELECT 'T' || n, 'A' FROM generate_series(1, 20000) n")  # fmt: skip
    running = bench.start(batch_max_rows=2)
    bench.wait_for_records(20)
    running.stop()
    sent = len(bench.records())
    assert sent < 20_000
    bench.once()
    assert len(bench.records()) == 20_000


def test_another_tables_keys_in_the_same_topic_are_not_swept(bench: Bench) -> None:
    """Guarantee 13: the offsets topic tells that another table is published there as well."""
    bench.add("T1", "T2", "T3")
    bench.once()
    bench.sql.execute(
        "CREATE SCHEMA other; CREATE TABLE other.terminal_acquirer (LIKE terminal_acquirer INCLUDING ALL)"
    )
    bench.sql.execute("INSERT INTO other.terminal_acquirer (id, terminal_id, acquirer_id) VALUES (77, 'T', 'A')")
    selection = TableSelection(listed=(TableName("other", "terminal_acquirer"),))
    running = bench.start(name=f"{bench.prefix}other", selection=selection)
    bench.wait_for_records(4)
    wait_until(lambda: any(t.state is SourceState.HELD for t in running.source.status().tables), what="HELD")
    assert {key for key, value in bench.records() if value is not None} == {b"1", b"2", b"3", b"77"}
    assert len(bench.records()) == 4


def test_a_table_adopted_while_the_source_runs(bench: Bench) -> None:
    """The running source notices it, and no change is lost (guarantee 8)."""
    bench.add("T1")
    running = bench.start()
    bench.wait_for_records(1)
    bench.sql.execute("DROP TRIGGER stamp ON terminal_acquirer")
    with psycopg.connect(bench.url, autocommit=True) as connection:
        install(connection)
        adopt(connection, Adoption(table="terminal_acquirer", key=("terminal_id",)))
    bench.add("T2")
    wait_until(lambda: {key for key, _ in bench.records()} == {b"1", b"2"}, what="T2")
    wait_until(lambda: all(table.adopted for table in running.source.status().tables), what="adopted")


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "0044-03-15 12:00:00 BC", "294276-12-31 23:59:59.999999"])
def test_moments_outside_of_pythons_calendar_end_no_source(bench: Bench, moment: str) -> None:
    bench.sql.execute(
        "INSERT INTO terminal_acquirer (terminal_id, acquirer_id, updated_date) VALUES ('T1', 'A', %s)", [moment]
    )
    bench.once()
    assert len(bench.records()) == 1


def test_a_topic_that_was_deleted_is_filled_again(bench: Bench) -> None:
    """The offset tells what is in a topic, not in its successor of the same name."""
    bench.add("T1", "T2")
    bench.once()
    admin = new_admin({"bootstrap.servers": bench.kafka.bootstrap})
    admin.delete_topics([bench.topic])[bench.topic].result()
    wait_until(lambda: not bench.kafka.topics([bench.topic]), what="the topic's end")
    bench.once()
    assert [key for key, _ in bench.records()] == [b"1", b"2"]


def test_a_topic_created_again_under_a_running_source_is_filled(bench: Bench) -> None:
    """Guarantee 8: a source that sleeps sees within seconds that its topic is another one."""
    bench.add("T1", "T2")
    bench.start(poll_interval_ms=3_600_000)
    bench.wait_for_records(2)
    before = bench.kafka.topics([bench.topic])[bench.topic].topic_id
    admin = new_admin({"bootstrap.servers": bench.kafka.bootstrap})
    admin.delete_topics([bench.topic])[bench.topic].result()

    def renewed() -> bool:
        found = bench.kafka.topics([bench.topic])
        return bool(found) and found[bench.topic].topic_id != before

    wait_until(renewed, TOPIC_CHECK_INTERVAL + 20, "another topic of that name")
    assert [key for key, _ in bench.wait_for_records(2)] == [b"1", b"2"]


def test_another_topic_of_the_same_connector_is_filled(bench: Bench) -> None:
    bench.add("T1", "T2")
    bench.once()
    bench.once(topic_prefix=f"{bench.prefix}more-")
    bench.topic = f"{bench.prefix}more-terminal_acquirer"
    assert [key for key, _ in bench.records()] == [b"1", b"2"]
