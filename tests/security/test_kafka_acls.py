"""Each component works with just the ACLs of deploy/kafka-acls.sh, and says which one is missing."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from compactory import (
    CompactoryError,
    ConfigError,
    Directory,
    DirectoryWriter,
    GlobalStore,
    StoreState,
    Unreachable,
    WriteFailed,
)
from compactory.ingest import topic_config
from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.kafka.consumer_group import Group
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.outbox import OutboxRelay
from compactory_connectors.processors import Event, Output, Processor, ProcessRunner, Refused, operators
from compactory_connectors.schema import install
from compactory_connectors.sink import SinkStopped, TransactionalSink
from compactory_connectors.source.config.files import load_connector
from compactory_connectors.source.offsets.topics import OFFSETS_TOPIC
from compactory_connectors.source.operations.offset_admin import OffsetAdmin
from compactory_connectors.source.operations.offset_edit import new_edit
from compactory_connectors.source.runtime.source import Source
from compactory_mastered import MasteredWriter, WriteRules
from compactory_mastered.writer import start_writers
from tests.conftest import needs_apache_kafka
from tests.sink.harness import COUNTERS, count
from tests.source.conftest import ARTICLE, article_environment
from tests.source.workload import TERMINALS, wait_until
from tests.stack.apache_kafka import ApacheKafka, new_admin

SCRIPT = Path(__file__).parents[2] / "deploy" / "kafka-acls.sh"
SOURCE, STORE = "directory-source", "payments"


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[ApacheKafka]:
    """A Kafka of its own, where nobody may do anything that is not allowed."""
    needs_apache_kafka()
    server = ApacheKafka(users=[SOURCE, STORE])
    try:
        server.start()
        yield server
    finally:
        server.remove()


@dataclass
class House:
    """One connector with its topic on the secured Kafka, administered by the test."""

    server: ApacheKafka
    database: str
    prefix: str

    def __post_init__(self) -> None:
        self.topic = f"{self.prefix}terminal_acquirer"
        self.admin = new_admin(self.server.client())
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(TERMINALS)
            connection.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'A1')")

    def grant(self, component: str, user: str, **settings: str) -> None:
        """Give what the shipped script asks the tool for; the tool itself takes seconds."""
        asked = [line.split() for line in self.script(component, user, KAFKA_ACLS="echo", **settings).splitlines()]
        bindings = [binding for words in asked for binding in _bindings(words)]
        for future in self.admin.create_acls(bindings).values():
            future.result(10)
        wait_until(lambda: len(self.acls(user)) == len(bindings), what="the ACLs")

    def script(self, component: str, user: str, **settings: str) -> str:
        """What the script prints."""
        environment = {
            "BOOTSTRAP": self.server.address, "TOPICS": self.topic, "CONNECTORS": self.prefix, **settings
        }  # fmt: skip
        command = [SCRIPT, component, f"User:{user}"]
        return subprocess.run(
            command, env={**os.environ, **environment}, check=True, capture_output=True, text=True
        ).stdout

    def acls(self, user: str) -> list[Any]:
        found = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        return self.admin.describe_acls(found).result(10)

    def take(
        self,
        user: str,
        kind: ResourceType,
        name: str,
        operation: AclOperation,
        match: ResourcePatternType = ResourcePatternType.LITERAL,
    ) -> None:
        """Remove one right; what it includes stays: Describe comes with Read and Write."""
        pattern = (kind, name, match, f"User:{user}")
        removed = AclBindingFilter(*pattern, None, operation, AclPermissionType.ANY)
        assert self.admin.delete_acls([removed])[removed].result(10)
        kept = AclBinding(*pattern, "*", AclOperation.DESCRIBE, AclPermissionType.ALLOW)
        self.admin.create_acls([kept])[kept].result(10)
        wait_until(lambda: not self.holds(user, name, operation, kind), what="the removal")

    def holds(self, user: str, name: str, operation: AclOperation, kind: ResourceType = ResourceType.TOPIC) -> bool:
        wanted = (kind, name, operation)
        return any((acl.restype, acl.name, acl.operation) == wanted for acl in self.acls(user))

    def create(self, topic: str, **config: str) -> None:
        config = {"cleanup.policy": "compact", **{name.replace("_", "."): value for name, value in config.items()}}
        self.admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(10)
        wait_until(lambda: topic in self.admin.list_topics(timeout=5).topics)

    def produce(self, topic: str) -> None:
        producer = Producer(self.server.client())
        producer.produce(topic, b"{}", b"left over")
        assert producer.flush(10) == 0

    def source(self, **changes: Any) -> None:
        """One round of the source, with its own user."""
        found = load_connector(ARTICLE, environment=article_environment(self.database, self.prefix))
        connector = replace(found, name=self.prefix, **changes)
        create = self.holds(SOURCE, self.topic, AclOperation.CREATE)
        kafka = Kafka(self.server.client(SOURCE))
        Source(connector, kafka, create_topics=create).run(threading.Event(), once=True, timeout=15)

    def store(self) -> dict[str, Any]:
        """What a store reads, with its own user."""
        with GlobalStore(self.server.client(STORE), [self.topic], stall_timeout=10) as store:
            return dict(store[self.topic])

    def clear(self) -> None:
        for user in (SOURCE, STORE):
            everything = _all_of(user)
            self.admin.delete_acls([everything])[everything].result(10)
        topics = [name for name in self.admin.list_topics(timeout=5).topics if not name.startswith("__")]
        for future in self.admin.delete_topics(topics).values() if topics else ():
            future.result(10)


def _all_of(user: str) -> AclBindingFilter:
    anything = (ResourceType.ANY, None, ResourcePatternType.ANY)
    return AclBindingFilter(*anything, f"User:{user}", None, AclOperation.ANY, AclPermissionType.ANY)


def _bindings(words: list[str]) -> Iterator[AclBinding]:
    """What ``kafka-acls.sh --add`` makes of its arguments."""
    given = list(itertools.pairwise(words))
    [principal] = [value for name, value in given if name == "--allow-principal"]
    operations = [value for name, value in given if name == "--operation"]
    kinds = {
        "--topic": ResourceType.TOPIC,
        "--transactional-id": ResourceType.TRANSACTIONAL_ID,
        "--group": ResourceType.GROUP,
    }
    prefixed = ("--resource-pattern-type", "prefixed") in given
    for name, value in given:
        for operation in operations if name in kinds else ():
            kind = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
            pattern = (kinds[name], value, kind, principal, "*")
            yield AclBinding(*pattern, _OPERATIONS[operation], AclPermissionType.ALLOW)


_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


@pytest.fixture
def house(own_kafka: ApacheKafka, database: str, unique: Callable[[str], str]) -> Iterator[House]:
    found = House(own_kafka, database, unique("acl"))
    yield found
    found.clear()


def test_source_and_store_need_no_more(house: House) -> None:
    tool = str(house.server.tool("org.apache.kafka.tools.AclCommand"))
    for component, user in (("source", SOURCE), ("store", STORE)):
        house.script(component, user, KAFKA_ACLS=tool, COMMAND_CONFIG=str(house.server.login()))
        wait_until(lambda user=user: house.acls(user), what="the ACLs")
    house.source()
    assert house.store()["1"]["acquirerId"] == "A1"
    with psycopg.connect(house.database) as connection:
        connection.execute("UPDATE terminal_acquirer SET acquirer_id = 'A2'")
    house.source()
    assert house.store()["1"]["acquirerId"] == "A2"


def test_a_first_load_reads_what_the_topic_holds(house: House) -> None:
    house.create(house.topic)
    house.produce(house.topic)
    house.grant("source", SOURCE)
    house.grant("store", STORE)
    house.source()
    assert list(house.store()) == ["1"]


def test_without_transactions_the_id_is_not_needed(house: House) -> None:
    house.grant("source", SOURCE)
    house.take(SOURCE, ResourceType.TRANSACTIONAL_ID, f"compactory-{house.prefix}", AclOperation.WRITE)
    house.source(transactions=False)
    house.grant("store", STORE)
    assert list(house.store()) == ["1"]


def test_topics_made_by_somebody_else(house: House) -> None:
    house.create(house.topic)
    house.create(OFFSETS_TOPIC)
    house.grant("source", SOURCE, CREATE_TOPICS="no")
    house.source()


def test_get_from_a_shell(house: House) -> None:
    house.grant("source", SOURCE)
    house.source()
    house.grant("store", STORE)
    names = {name: value for name, value in house.server.client(STORE).items() if name != "bootstrap.servers"}
    variables = {f"COMPACTORY_KAFKA_{name.upper().replace('.', '_')}": value for name, value in names.items()}
    done = subprocess.run(
        [sys.executable, "-m", "compactory_cli", "get", house.topic, "1", "--kafka", house.server.address],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"acquirerId": "A1"' in done.stdout


def test_a_stranger_is_told_what_is_missing(house: House) -> None:
    house.create(house.topic)
    with pytest.raises(ConfigError, match=f"lacks the ACL operation Describe on topic '{house.topic}'"):
        house.store()


@pytest.mark.parametrize(
    ("kind", "name", "operation", "told"),
    [
        ("TOPIC", "{topic}", "CREATE", "topic '{topic}' does not exist"),
        ("TOPIC", "{topic}", "DESCRIBE_CONFIGS", "lacks the ACL operation DescribeConfigs on topic '{topic}'"),
        ("TOPIC", "{topic}", "READ", "lacks the ACL operation Read on topic '{topic}'"),
        ("TOPIC", "{topic}", "WRITE", "lacks the ACL operation Write on topic '{topic}'"),
        ("TOPIC", "compactory-offsets", "READ", "lacks the ACL operation Read on topic 'compactory-offsets'"),
        ("TOPIC", "compactory-offsets", "WRITE", "lacks the ACL operation Write on topic 'compactory-offsets'"),
        ("TRANSACTIONAL_ID", "compactory-{prefix}", "WRITE", "grant the ACL operation Write on the transactional id"),
    ],
)
def test_one_right_less_and_the_source_names_it(house: House, kind: str, name: str, operation: str, told: str) -> None:
    names = {"topic": house.topic, "prefix": house.prefix}
    if operation != "CREATE":
        house.create(house.topic)
        house.create(OFFSETS_TOPIC)
        house.produce(house.topic)
        house.produce(OFFSETS_TOPIC)
    house.grant("source", SOURCE)
    house.take(SOURCE, ResourceType[kind], name.format(**names), AclOperation[operation])
    with pytest.raises(CompactoryError) as caught:
        house.source()
    assert told.format(**names) in str(caught.value)
    assert isinstance(caught.value, ConfigError)


def test_offsets_are_shown_to_who_may_read_and_edited_by_who_may_write(house: House) -> None:
    house.grant("source", SOURCE)
    house.source()
    kafka = Kafka(house.server.client(SOURCE))
    found = load_connector(ARTICLE, environment=article_environment(house.database, house.prefix))
    connector, edit = replace(found, name=house.prefix), new_edit("reset")
    house.take(SOURCE, ResourceType.TOPIC, OFFSETS_TOPIC, AclOperation.WRITE)
    with OffsetAdmin.open(connector, kafka) as desk:
        before = desk.stored()
        assert [stored.offset is not None for stored in before.values()] == [True]
        with pytest.raises(ConfigError, match="lacks the ACL operation Write on topic 'compactory-offsets'"):
            desk.write(partial(desk.decide_reset, ()), edit, force=False)
        assert desk.stored() == before
        house.take(SOURCE, ResourceType.TOPIC, OFFSETS_TOPIC, AclOperation.READ)
        with pytest.raises(ConfigError, match=r"refused to read topic|lacks the ACL operation Read"):
            desk.stored()


def test_one_right_less_and_the_store_names_it(house: House) -> None:
    house.create(house.topic)
    house.produce(house.topic)
    house.grant("store", STORE)
    house.take(STORE, ResourceType.TOPIC, house.topic, AclOperation.READ)
    with pytest.raises(CompactoryError, match=f"reading '{house.topic}' was refused"):
        house.store()


def test_a_right_that_goes_while_a_store_runs_is_named(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """Guarantee 7: lookups go on, and so does reading once the right is back."""
    house.create(house.topic)
    house.grant("store", STORE)
    with GlobalStore(house.server.client(STORE), [house.topic]) as store:
        house.take(STORE, ResourceType.TOPIC, house.topic, AclOperation.READ)
        house.produce(house.topic)
        wait_until(lambda: f"reading '{house.topic}' was refused" in caplog.text, what="the line of the log")
        assert store.ready
        pattern = (ResourceType.TOPIC, house.topic, ResourcePatternType.LITERAL, f"User:{STORE}")
        right = AclBinding(*pattern, "*", AclOperation.READ, AclPermissionType.ALLOW)
        house.admin.create_acls([right])[right].result(10)
        store.barrier(timeout=20)
        assert dict(store[house.topic]) == {"left over": {}}


def test_a_store_that_still_loads_needs_no_group_either(house: House) -> None:
    """The client looks for the coordinator of a group that nobody is in, and is refused while the store loads."""
    house.create(house.topic)
    house.grant("store", STORE)
    producer = Producer({**house.server.client(), "transactional.id": house.prefix})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(house.topic, b"{}", b"1")
    assert producer.flush(10) == 0
    store = GlobalStore(house.server.client(STORE), [house.topic])
    loading = threading.Thread(target=store.start)
    loading.start()
    wait_until(lambda: "Group authorization" in (store._reader.last_error or ""), what="the refusal")
    assert store.state is StoreState.LOADING
    producer.commit_transaction(10)
    loading.join(20)
    assert dict(store[house.topic]) == {"1": {}}
    store.close()


def test_a_retention_that_is_known_counts_without_the_right(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guarantee 2: nor does a broker that refuses us for another reason, such as its certificate, make it a day."""
    monkeypatch.setattr(topic_config, "_REFRESH", 0)
    house.create(house.topic, delete_retention_ms="60000")
    house.grant("writer", STORE)
    kafka = Kafka(house.server.client(STORE))
    policies = topic_config.TopicPolicies(kafka)

    def has_right() -> bool:
        with suppress(ConfigError):
            return bool(kafka.topic_configs([house.topic]))
        return False

    wait_until(has_right, what="the right")
    policies.refresh([house.topic], 10)
    assert policies.retention(house.topic) == 60
    house.take(STORE, ResourceType.TOPIC, house.topic, AclOperation.DESCRIBE_CONFIGS)
    wait_until(lambda: not has_right(), what="the refusal")
    policies.refresh([house.topic], 10)
    assert "lacks the ACL operation DescribeConfigs" in caplog.text
    assert policies.retention(house.topic) == 60


def test_a_writer_needs_no_more(house: House) -> None:
    """Nor DescribeConfigs, without which the broker says what is too large."""
    house.create(house.topic)
    house.grant("writer", STORE)
    house.take(STORE, ResourceType.TOPIC, house.topic, AclOperation.DESCRIBE_CONFIGS)
    with DirectoryWriter(house.server.client(STORE), Directory(house.topic, writable=True)) as writer:
        tokens = [writer.put("1", {}), *writer.put_many({"2": {}, "3": {}}), writer.delete("3")]
    assert [token.offset for token in tokens] == [0, 1, 2, 3]


def test_a_writer_names_the_right_it_lacks(house: House) -> None:
    """Before it writes, and when the right is taken from it meanwhile."""
    house.create(house.topic)
    writer = DirectoryWriter(house.server.client(STORE), Directory(house.topic, writable=True))
    with pytest.raises(ConfigError, match=f"lacks the ACL operation Describe on topic '{house.topic}'"):
        writer.put("1", {})
    house.grant("store", STORE)
    with pytest.raises(ConfigError, match=f"lacks the ACL operation Write on topic '{house.topic}'"):
        writer.put("1", {})
    create = DirectoryWriter(house.server.client(STORE), Directory(f"{house.topic}2", writable=True), create=True)
    with pytest.raises(ConfigError, match=r"lacks the ACL operation (Describe|Create)"):
        create.start()
    house.admin.delete_acls([_all_of(STORE)])[_all_of(STORE)].result(10)
    wait_until(lambda: not house.acls(STORE), what="the removal")
    house.grant("writer", STORE)
    writer.put("1", {})
    house.take(STORE, ResourceType.TOPIC, house.topic, AclOperation.WRITE)
    with pytest.raises(WriteFailed, match="refused to write to topic") as caught:
        writer.put_many({"1": {}, "2": {}})
    assert isinstance(caught.value.cause, ConfigError)
    assert (caught.value.not_written, caught.value.unknown) == (("1", "2"), ())
    with pytest.raises(ConfigError, match=f"lacks the ACL operation Write on topic '{house.topic}'"):
        writer.put("1", {})
    writer.close()


def test_a_relay_needs_no_more(house: House) -> None:
    """Also to take over from a relay that died."""
    house.create(house.topic)
    house.grant("outbox", SOURCE)
    install(house.database)
    with psycopg.connect(house.database, autocommit=True) as connection:
        for value in ("1", "2"):
            connection.execute("SELECT compactory.publish(%s, %s::text, 'k')", [house.topic, value])
            connection.execute(
                "INSERT INTO compactory.kafka_topic_info (topic, locked_by, locked_at) VALUES (%s, 'gone', '-infinity')"
                " ON CONFLICT (topic) DO UPDATE SET locked_by = 'gone', locked_at = '-infinity'",
                [house.topic],
            )
            with OutboxRelay(house.database, house.server.client(SOURCE)) as relay:
                assert relay.drain(threading.Event())
    assert [message.value() for message in read(Kafka(house.server.client()), house.topic)] == [b"1", b"2"]


def test_a_relay_that_may_not_write_a_topic_says_so(house: House) -> None:
    house.create(house.topic)
    house.grant("outbox", SOURCE)
    house.take(SOURCE, ResourceType.TOPIC, house.topic, AclOperation.WRITE)
    install(house.database)
    with psycopg.connect(house.database, autocommit=True) as connection:
        connection.execute("SELECT compactory.publish(%s, 'v', 'k')", [house.topic])
        with (
            OutboxRelay(house.database, house.server.client(SOURCE)) as relay,
            pytest.raises(CompactoryError, match="the ACL operation Write on the topic is needed"),
        ):
            relay.drain(threading.Event())


def test_a_topic_that_a_relay_may_not_see_keeps_no_other_waiting(house: House) -> None:
    house.create(house.topic)
    house.create(hidden := f"{house.topic}-hidden")
    house.grant("outbox", SOURCE)
    install(house.database)
    with psycopg.connect(house.database, autocommit=True) as connection:
        for topic in (hidden, house.topic):
            connection.execute("SELECT compactory.publish(%s, 'v', 'k')", [topic])
        with (
            OutboxRelay(house.database, house.server.client(SOURCE), threads=1) as relay,
            pytest.raises(CompactoryError, match=f"lacks the ACL operation Describe on topic '{hidden}'"),
        ):
            relay.drain(threading.Event())
    assert [message.value() for message in read(Kafka(house.server.client()), house.topic)] == [b"v"]


def sunk(house: House, **options: Any) -> TransactionalSink:
    """A sink with its own user, and two records for it."""
    house.create(house.topic)
    house.produce(house.topic)
    house.produce(house.topic)
    install(house.database)
    with psycopg.connect(house.database, autocommit=True) as connection:
        connection.execute(COUNTERS)
    return TransactionalSink(house.server.client(SOURCE), house.database, [house.topic], count, name="acl", **options)


def applied(house: House) -> list[Any]:
    with psycopg.connect(house.database) as connection:
        return connection.execute("SELECT applied FROM counters").fetchall()


def test_a_sink_needs_no_more(house: House) -> None:
    """Also to commit to its group, for those who watch."""
    sink = sunk(house)
    house.grant("sink", SOURCE)
    with sink:
        wait_until(lambda: applied(house) == [(2,)], what="the records")
        assert sink.stop()
    consumer = Kafka(house.server.client()).member({"group.id": "compactory-sink-acl"})
    assert consumer.committed([TopicPartition(house.topic, 0)], timeout=10)[0].offset == 2
    consumer.close()


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("TOPIC", "{topic}", "this client may not read topic '{topic}'.*grant Read on topic and group"),
        ("GROUP", "compactory-sink-", "this client may not join group 'compactory-sink-acl'.*grant Read on"),
    ],
)
def test_one_right_less_and_the_sink_names_it(house: House, kind: str, name: str, told: str) -> None:
    sink = sunk(house)
    house.grant("sink", SOURCE)
    pattern = ResourcePatternType.LITERAL if kind == "TOPIC" else ResourcePatternType.PREFIXED
    house.take(SOURCE, ResourceType[kind], name.format(topic=house.topic), AclOperation.READ, pattern)
    with sink, pytest.raises(SinkStopped, match=told.format(topic=house.topic)):
        sink.wait(30)
    assert applied(house) == []


def test_the_servers_of_a_mastered_directory_need_no_more(house: House) -> None:
    """Also to take over from another one."""
    house.create(house.topic)
    house.grant("master", SOURCE)
    for number in range(2):
        directory = Directory("tenants", topic=house.topic, rules=WriteRules())
        with GlobalStore(house.server.client(SOURCE), [directory]) as store, MasteredWriter(store, directory) as writer:
            writer.put(f"t{number}", {}, idempotency_key=f"k{number}")
            assert writer.put("t0", {}, idempotency_key="k0").repeated


def test_a_master_that_lacks_a_right_says_so(house: House) -> None:
    house.create(house.topic)
    house.grant("master", SOURCE)
    house.take(SOURCE, ResourceType.TRANSACTIONAL_ID, f"compactory-writes-{house.topic}", AclOperation.WRITE)
    directory = Directory("tenants", topic=house.topic, rules=WriteRules())
    with GlobalStore(house.server.client(SOURCE), [directory]) as store, MasteredWriter(store, directory) as writer:
        with pytest.raises(WriteFailed, match=f"'compactory-writes-{house.topic}'.*the ACL operation Write"):
            writer.put("t1", {})
        house.take(SOURCE, ResourceType.TOPIC, house.topic, AclOperation.WRITE)
        with pytest.raises(ConfigError, match=f"lacks the ACL operation Write on topic '{house.topic}'"):
            start_writers([MasteredWriter(store, directory)])


def processed(house: House, name: str) -> ProcessRunner:
    """A processor with its own user, and two events for it."""
    for topic in (house.topic, f"{house.topic}-done"):
        house.create(topic)
    for _ in range(2):
        house.produce(house.topic)

    def done(event: Event) -> Output:
        if event.offset == 0:
            raise Refused("not this one")
        return Output(topic=f"{house.topic}-done", key=event.key, value=event.value)

    chosen = Processor(function=done, name=name, topic=house.topic, decode=bytes)
    return ProcessRunner(house.server.client(SOURCE), chosen)


def test_a_processor_needs_no_more(house: House) -> None:
    """Also to keep an event that it has set aside, and for the operator who has it tried again."""
    runner = processed(house, house.prefix)
    house.grant("process", SOURCE, PROCESSORS=house.prefix, OUTPUTS=f"{house.topic}-done")
    with runner:
        wait_until(lambda: runner.board.events >= 1, what="the event")
        assert runner.stop()
    assert len([*read(Kafka(house.server.client()), f"{house.topic}-done")]) == 1
    kafka = Kafka(house.server.client(SOURCE))
    assert [parked.state for parked in operators.stored_events(kafka, house.prefix)] == ["failed"]
    assert operators.retry(kafka, house.prefix) == 1


@pytest.mark.parametrize(
    ("kind", "name", "operation", "told"),
    [
        ("TOPIC", "{topic}", "READ", "Read on topic '{topic}'"),
        ("TOPIC", "compactory-process-{name}", "WRITE", "Write on topic 'compactory-process-{name}'"),
        ("GROUP", "compactory-process-{name}", "READ", "compactory-process-{name}"),
        ("TRANSACTIONAL_ID", "compactory-process-{name}-", "WRITE", "compactory-process-{name}-"),
    ],
)
def test_one_right_less_and_the_processor_names_it(
    house: House, kind: str, name: str, operation: str, told: str
) -> None:
    runner = processed(house, house.prefix)
    house.grant("process", SOURCE, PROCESSORS=house.prefix, OUTPUTS=f"{house.topic}-done")
    names = {"topic": house.topic, "name": house.prefix}
    prefixed = kind == "TRANSACTIONAL_ID"
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    house.take(SOURCE, ResourceType[kind], name.format(**names), AclOperation[operation], pattern)
    house.create(f"compactory-process-{house.prefix}")
    with pytest.raises(CompactoryError, match=re.escape(told.format(**names))), runner:
        runner.wait(30)


def test_a_password_is_never_printed(house: House) -> None:
    with (
        pytest.raises(ConfigError) as caught,
        GlobalStore({**house.server.client(STORE), "sasl.password": "not-the-one"}, ["t"], stall_timeout=10),
    ):
        pass
    assert "not-the-one" not in str(caught.value)


def test_the_script_explains_itself() -> None:
    done = subprocess.run([SCRIPT, "sink"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "TOPICS" in done.stderr
    assert "set -euo" not in done.stderr


def test_offsets_that_may_not_be_read_are_not_taken_for_none(house: House) -> None:
    """Else a processor or sink would begin anew, or leave records out."""
    topics = [house.topic, f"{house.topic}-more"]
    for topic in topics:
        house.create(topic)
    common = (ResourcePatternType.LITERAL, f"User:{STORE}", "*", AclOperation.READ, AclPermissionType.ALLOW)
    rights = [(ResourceType.GROUP, house.prefix), (ResourceType.TOPIC, topics[0])]
    for future in house.admin.create_acls([AclBinding(*right, *common) for right in rights]).values():
        future.result(10)
    wait_until(lambda: len(house.acls(STORE)) == len(rights), what="the ACLs")
    group = Group(Kafka(house.server.client(STORE)), topics, house.prefix, {})
    try:
        with pytest.raises(Unreachable, match="offsets could not be read"):
            group.stored([Partition(topic, 0) for topic in topics])
    finally:
        group.close()
