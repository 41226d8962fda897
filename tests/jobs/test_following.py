"""Executors that follow the assignment of a consumer group on real Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewPartitions

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.jobs import Job, JobExecutor, Jobs, NewJob, partition_assignment
from compactory_connectors.jobs.status import JobsWorker
from compactory_connectors.kafka.partitioner import partition_of
from tests.jobs.harness import Bench
from tests.source.workload import wait_until
from tests.stack.apache_kafka import needs, new_admin

PARTITIONS = 10


@pytest.fixture
def topic(kafka: str, unique: Callable[[str], str]) -> str:
    name = unique("jobs")
    Kafka(kafka).create_topic(name, partitions=PARTITIONS)
    wait_until(lambda: Kafka(kafka).topics([name]), what="the topic")
    return name


@pytest.fixture(params=["classic", pytest.param("consumer", marks=pytest.mark.proof)])
def protocol(request: pytest.FixtureRequest) -> str:
    if request.param == "consumer":
        needs(4)
    return str(request.param)


@contextmanager
def polled(bench: Bench, jobs: Jobs, kafka: str, topic: str, strategy: str, callbacks: bool) -> Iterator[JobExecutor]:
    """An executor beside a service's consumer, which is polled as by its message handler."""
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": f"{topic}-service", "partition.assignment.strategy": strategy}
    )
    subscribed = threading.Event()
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            if subscribed.is_set():
                consumer.poll(0.05)
            stop.wait(0.0 if callbacks else 0.02)

    thread = threading.Thread(target=poll)
    thread.start()
    executor = bench.executor(jobs, consumer=consumer)
    told = {"on_assign": executor.on_assign, "on_revoke": executor.on_revoke, "on_lost": executor.on_revoke}
    consumer.subscribe([topic], **(told if callbacks else {}))
    subscribed.set()
    try:
        yield executor
        assert executor.stop()
    finally:
        stop.set()
        thread.join()
        consumer.close()


def mine(executor: JobExecutor) -> set[int]:
    return set(executor.board.picture()["partitions"])


@pytest.mark.parametrize(("strategy", "callbacks"), [("cooperative-sticky", True), ("range", False)])
def test_jobs_run_where_their_origins_messages_are_read(
    bench: Bench, kafka: str, topic: str, strategy: str, callbacks: bool
) -> None:
    """Hand-over on a rebalance, cooperative or not, within two seconds; a job that runs goes on where it is."""
    ran: list[tuple[str | None, int, float]] = []
    go = threading.Event()

    def registry(number: int) -> Jobs:
        jobs = Jobs()

        @jobs.handler("a")
        def handle(job: Job) -> None:
            ran.append((job.origin, number, time.monotonic()))
            if job.payload:
                go.wait(30)

        return jobs

    bench.jobs.declare("a")
    with polled(bench, registry(1), kafka, topic, strategy, callbacks) as one:
        wait_until(lambda: len(mine(one)) == PARTITIONS, what="all partitions")
        with bench.sql.transaction():
            for number in range(20):
                bench.jobs.enqueue(bench.sql, "a", {"long": 1}, origin=f"o{number}", group=f"g{number}")
        wait_until(lambda: len(ran) == 20, what="those that take long")
        with polled(bench, registry(2), kafka, topic, strategy, callbacks) as two:
            wait_until(lambda: mine(two) and not mine(one) & mine(two), what="the rebalance")
            wait_until(lambda: len(mine(one)) + len(mine(two)) == PARTITIONS, what="all partitions")
            began = time.monotonic()
            ran.clear()
            with bench.sql.transaction():
                bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", origin=f"p{n}") for n in range(40)])
            wait_until(lambda: len(ran) == 40, what="new jobs")
            assert max(at for *_, at in ran) - began < 2.0
            for origin, number, _ in ran:
                home = one if partition_of(str(origin).encode(), PARTITIONS) in mine(one) else two
                assert number == (1 if home is one else 2)
            go.set()
            bench.wait_for_all()


def test_a_group_of_its_own(bench: Bench, kafka: str, topic: str, unique: Callable[[str], str], protocol: str) -> None:
    bench.jobs.handler("a")(lambda job: None)
    client = {"bootstrap.servers": kafka, "group.protocol": protocol}
    options: dict[str, Any] = {"kafka": client, "topic": topic, "group_id": unique("group")}
    one = bench.executor(**options)
    wait_until(lambda: len(mine(one)) == PARTITIONS, what="all partitions")
    two = bench.executor(**options)
    wait_until(lambda: len(mine(one)) == len(mine(two)) == PARTITIONS // 2, what="halves")
    with bench.sql.transaction():
        bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", origin=f"{n}") for n in range(40)])
    bench.wait_for_all()
    assert one.stop()
    wait_until(lambda: len(mine(two)) == PARTITIONS, what="all partitions")


def test_a_topic_that_is_given_partitions_leaves_no_job_behind(
    bench: Bench, kafka: str, topic: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every executor counts anew, also one whose own partitions stay: else an origin has no executor, or two."""
    monkeypatch.setattr(partition_assignment, "_COUNT_EVERY", 0.5)
    options = {"topic.metadata.refresh.interval.ms": 500, "group.protocol": protocol}
    options |= {"partition.assignment.strategy": "cooperative-sticky"} if protocol == "classic" else {}
    bench.jobs.handler("a")(lambda job: None)
    executors = []
    stop = threading.Event()
    with ExitStack() as stack:
        for _ in range(2):
            consumer = Consumer({"bootstrap.servers": kafka, "group.id": f"{topic}-service", **options})
            executor = bench.executor(consumer=consumer)
            consumer.subscribe([topic], on_assign=executor.on_assign, on_revoke=executor.on_revoke)
            thread = threading.Thread(target=polling, args=(consumer, stop))
            thread.start()
            for last in (consumer.close, thread.join, stop.set, executor.stop):
                stack.callback(last)
            executors.append(executor)
        wait_until(lambda: {len(mine(each)) for each in executors} == {PARTITIONS // 2}, what="halves")
        admin = new_admin({"bootstrap.servers": kafka})
        admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result()
        wait_until(lambda: sum(len(mine(each)) for each in executors) == PARTITIONS + 1, what="the new partition")
        with bench.sql.transaction():
            bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", origin=f"{n}") for n in range(100)])
        bench.wait_for_all()


def polling(consumer: Consumer, stop: threading.Event) -> None:
    while not stop.is_set():
        consumer.poll(0.05)
        stop.wait(0.01)


def test_callbacks_ask_the_client_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call within a callback ends the process at the next callback; the partitions are ours once Kafka answers."""
    monkeypatch.setattr(partition_assignment, "_ASK_EVERY", 0.01)
    monkeypatch.setattr(partition_assignment, "_TIMEOUT", 0.1)
    consumer: Any = Polled()
    followed = partition_assignment.FollowedConsumer(consumer)
    followed.start()
    followed.add(consumer, [TopicPartition("a", 1)])
    assert followed.assigned([], 1) is None
    consumer.away = False
    wait_until(lambda: followed.assigned([], 1) == ((1,), 3), what="the number of partitions")
    followed.stop()


class Polled:
    """A consumer whose broker is away, and that a service polls in the thread that made it."""

    def __init__(self) -> None:
        self.away = True
        self.thread = threading.get_ident()

    def assignment(self) -> list[TopicPartition]:
        return []

    def list_topics(self, topic: str | None, timeout: float) -> SimpleNamespace:
        assert threading.get_ident() != self.thread
        if self.away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return SimpleNamespace(topics={"a": SimpleNamespace(partitions={0: 0, 1: 1, 2: 2})})


def test_what_can_not_be_followed_is_told(bench: Bench, kafka: str, unique: Callable[[str], str]) -> None:
    bench.jobs.handler("a")(lambda job: None)
    missing = unique("missing")
    with pytest.raises(ConfigError, match=f"topic '{missing}' does not exist"):
        JobExecutor(bench.url, bench.jobs, kafka=kafka, topic=missing, group_id=unique("group")).start()
    closed = Consumer({"bootstrap.servers": kafka, "group.id": unique("group")})
    closed.close()
    executor = bench.executor(consumer=closed)
    assert JobsWorker(executor).live()
    assert JobsWorker(executor).blocking() == [{"jobs": "waiting for its partitions"}]


def test_only_executors_of_the_same_types_share_partitions() -> None:
    """However many and long the names are, and whatever is in them."""
    names = [f"invoices.{number:04}.send" for number in range(200)]
    deployments = [{"a", "b"}, {"a,b"}, {"a", "b", "c"}, set(names), {*names, "zz.first"}, {*names, "zz.second"}]
    assert len({partition_assignment.Share(types).pool for types in deployments}) == len(deployments)
    assert partition_assignment.Share(names).pool == partition_assignment.Share(reversed(names)).pool
    assert len(partition_assignment.Share(names).pool) < 300
