"""The source end to end: the article's connector on real Postgres and real Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import psycopg
import pytest

from compactory.errors import ConfigError, Unreachable
from compactory_connectors.postgres.wakeup import Slept, Wakeup
from compactory_connectors.schema import Adoption, adopt, install
from compactory_connectors.source.offsets.topics import OFFSETS_TOPIC, stored_values
from compactory_connectors.source.operations.preview import preview
from compactory_connectors.source.status.status import SourceState
from tests.source.conftest import Bench
from tests.source.workload import TERMINALS, wait_until
from tests.stack.apache_kafka import ApacheKafka


def adopt_terminals(bench: Bench) -> None:
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute("DROP TABLE terminal_acquirer; DROP FUNCTION stamp()")
        connection.execute(TERMINALS)
        install(connection)
        adopt(connection, Adoption(table="terminal_acquirer", key=("terminal_id",)))


def test_the_articles_connector_unchanged(bench: Bench) -> None:
    """The topic has the article's keys and values; a second run adds nothing (guarantee 9)."""
    bench.add("1", "2")
    bench.sql.execute("UPDATE terminal_acquirer SET updated_date = '2024-01-01 11:11:11'")
    bench.sql.execute("ALTER TABLE terminal_acquirer DISABLE TRIGGER ALL")
    bench.sql.execute("UPDATE terminal_acquirer SET updated_date = '2024-01-01 11:11:11.0005'")
    bench.once()
    value = '{"id":%s,"terminalId":"%s","acquirerId":"A","isActive":true,"updatedDate":"2024-01-01 11:11:11.000"}'
    want = [(n.encode(), (value % (n, n)).encode()) for n in ("1", "2")]
    assert bench.records() == want
    bench.once()
    assert bench.records() == want


def test_restart_goes_on_where_it_stopped(bench: Bench) -> None:
    bench.add("T1")
    bench.once()
    bench.add("T2")
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
    bench.once()
    assert [key for key, _ in bench.records()] == [b"1", b"2", b"1"]


def test_the_offset_has_connects_shape(bench: Bench, database: str) -> None:
    bench.add("T1")
    bench.once()
    name = database.rsplit("/", 1)[1]
    key = json.dumps(
        [bench.prefix, {"protocol": "1", "table": f"{name}.public.terminal_acquirer"}], separators=(",", ":")
    )
    value = stored_values(bench.kafka)[key.encode()]
    offset = json.loads(value)
    assert offset["incrementing"] == 1
    assert offset["seen_snapshot"]["snapshot"]["xmax"]
    assert bench.kafka.topic_configs([OFFSETS_TOPIC])[OFFSETS_TOPIC]["cleanup.policy"] == "compact"


def test_soft_delete_is_a_tombstone(bench: Bench) -> None:
    """Guarantee 10."""
    bench.add("T1")
    bench.once(soft_delete=True)
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false")
    bench.once(soft_delete=True)
    assert bench.records()[-1] == (b"1", None)


def test_without_transactions(bench: Bench) -> None:
    bench.add("T1", "T2")
    bench.once(transactions=False)
    bench.once(transactions=False)
    assert len(bench.records()) == 2


def test_follows_changes_of_a_table_as_it_is(bench: Bench) -> None:
    bench.add("T1")
    running = bench.start()
    bench.wait_for_records(1)
    bench.add("T2")
    bench.wait_for_records(2)
    running.stop()
    assert running.source.status().state is SourceState.STOPPED


def test_an_adopted_table_wakes_the_source(bench: Bench) -> None:
    """No fixed delay: the poll interval is an hour, and the change arrives at once; hard deletes too."""
    adopt_terminals(bench)
    bench.add("T1")
    bench.start(poll_interval_ms=3_600_000, soft_delete=True)
    bench.wait_for_records(1)
    bench.add("T2")
    bench.wait_for_records(2)
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = 1")
    assert bench.wait_for_records(3)[-1] == (b"1", None)
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 1")
    bench.wait_for_records(4)


def test_a_writer_that_saw_the_source_awake_is_not_missed(bench: Bench) -> None:
    """A transaction whose triggers stayed silent commits while the source wants to sleep."""
    adopt_terminals(bench)
    bench.add("T1")
    with psycopg.connect(bench.url) as writer:
        writer.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('silent', 'A')")
        bench.start(poll_interval_ms=3_600_000)
        bench.wait_for_records(1)
        bench.add("T3")
        bench.wait_for_records(2)
        writer.commit()
    bench.wait_for_records(3)


def test_a_commit_just_before_the_source_sleeps_is_not_missed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its triggers stayed silent, and it ended before the lock was taken: only a look after the lock finds it."""
    adopt_terminals(bench)
    bench.add("T1")
    sleep, late = Wakeup.sleep_for, ["T2"]

    def sleep_after_a_commit(wakeup: Wakeup, keys: Iterable[int]) -> Slept:
        if late:
            bench.add(late.pop())
        return sleep(wakeup, keys)

    monkeypatch.setattr(Wakeup, "sleep_for", sleep_after_a_commit)
    bench.start(poll_interval_ms=3_600_000)
    bench.wait_for_records(2)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_that_is_not_compacted_is_refused(bench: Bench, policy: str) -> None:
    bench.add("T1")
    bench.kafka.create_topic(bench.topic, partitions=1, replication=1, config={"cleanup.policy": policy})
    with pytest.raises(ConfigError, match=r"cleanup\.policy=.*remedy: kafka-configs"):
        bench.once()
    assert bench.records() == []


def test_a_single_replica_topic_is_warned_about(bench: Bench) -> None:
    bench.add("T1")
    running = bench.start()
    bench.wait_for_records(1)
    assert any("min.insync.replicas" in text for text in running.source.status().warnings)


def test_keys_that_the_table_lacks_are_swept_at_the_first_load(bench: Bench) -> None:
    """Offsets were lost: what the topic has and the table has not is removed."""
    bench.add("T1", "T2")
    bench.once()
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 1")
    bench.once(name=f"{bench.prefix}again")
    assert bench.records()[-1] == (b"1", None)


def test_a_sweep_of_too_many_keys_is_held(bench: Bench) -> None:
    """Guarantee 13."""
    bench.sql.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
                      " SELECT 'T' || n, 'A' FROM generate_series(1, 500) n")  # fmt: skip
    bench.once()
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id > 300")
    running = bench.start(name=f"{bench.prefix}again")
    bench.wait_for_records(800)
    wait_until(lambda: any(t.state is SourceState.HELD for t in running.source.status().tables), what="HELD")
    bench.add("new")
    records = bench.wait_for_records(801)
    assert all(value is not None for _, value in records)


def test_deactivated_rows_are_no_business_of_a_sweep(bench: Bench) -> None:
    """A topic that had their values gets a tombstone of each, once, where so many may go."""
    bench.sql.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id, is_active)"
                      " SELECT 'T' || n, 'A', n > 150 FROM generate_series(1, 300) n")  # fmt: skip
    bench.once()
    running = bench.start(name=f"{bench.prefix}again", soft_delete=True, max_removed_percent=50)
    running.wait_for(SourceState.RUNNING)
    bench.wait_for_records(600)
    bench.add("new")
    records = bench.wait_for_records(601)[300:]
    removed = [key for key, value in records if value is None]
    assert (len(removed), len(set(removed))) == (150, 150)
    assert all(table.state is SourceState.RUNNING for table in running.source.status().tables)


def test_preview_writes_nothing(bench: Bench) -> None:
    bench.add("T1", "T2", "T3")
    (shown,) = preview(bench.connector(), limit=2)
    assert (shown.topic, shown.rows, shown.key_columns) == (bench.topic, 3, ("id",))
    assert [key for key, _ in shown.records] == [b"1", b"2"]
    assert bench.topic not in bench.kafka.topic_names()


def test_postgres_away_and_back(bench: Bench) -> None:
    """Guarantee 12: the connection is cut; the source waits and goes on."""
    bench.add("T1")
    running = bench.start()
    bench.wait_for_records(1)
    bench.sql.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'compactory-source'"
    )
    bench.add("T2")
    bench.wait_for_records(2)
    status = running.source.status()
    assert sum(table.errors_total for table in status.tables) == 1


@pytest.mark.proof
def test_kafka_away_and_back(own_kafka: ApacheKafka, database: str, unique: Callable[[str], str]) -> None:
    """Guarantees 11, 12: longer than the producer's time-out; nothing is lost, sent twice, or taken over."""
    bench = Bench(database, own_kafka.address, f"{unique('s')}-")
    install(bench.sql)
    bench.add("T1")
    running = bench.start()
    bench.wait_for_records(1)
    standby = bench.start()
    standby.wait_for(SourceState.STANDBY)
    own_kafka.kill()
    bench.add("T2")
    running.wait_for(SourceState.WAITING, timeout=40)
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
    own_kafka.start()
    running.wait_for(SourceState.RUNNING, timeout=60)
    bench.wait_for_records(3, timeout=60)
    assert standby.source.status().state is SourceState.STANDBY
    assert bench.sql.execute("SELECT epoch FROM compactory.leases").fetchone() == (1,)
    bench.close()
    assert [key for key, _ in bench.records()] == [b"1", b"2", b"1"]


def test_unreachable_at_the_start_ends_in_time(bench: Bench) -> None:
    bench.kafka = type(bench.kafka)("127.0.0.1:9")
    with pytest.raises(Unreachable, match="Kafka at 127"):
        bench.once(timeout=3)


def test_wrong_database(bench: Bench, database: str) -> None:
    connector = bench.connector()
    place = dict(connector.connection.conninfo) | {"dbname": "nowhere"}
    with pytest.raises(ConfigError, match="nowhere"):
        bench.once(connection=type(connector.connection)(place))
