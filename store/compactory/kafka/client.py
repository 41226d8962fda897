# pyright: reportPrivateImportUsage=false
"""A cluster through its client: requests to it, consumers, producers.

The modules above deal in `Partition`, offsets and `Message`. `admin` sends requests and `errors` maps errors; nothing
else imports the client library. Facts were checked on confluent-kafka 2.16 (librdkafka 2.16) against
Apache Kafka 4.1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Literal

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its re-exports are implicit
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from compactory.errors import ConfigError, Unreachable
from compactory.kafka.admin import Admin
from compactory.kafka.errors import (
    FORBIDDEN,
    check,
    code_of,
    event_kind,
    kafka_errors,
)
from compactory.kafka.properties import OWNED, normalise, printable, without_secrets
from compactory.records import Partition, Topic
from compactory.threads import thread_problems

__all__ = [
    "Consumer",
    "Kafka",
    "KafkaError",
    "KafkaException",
    "Message",
    "Producer",
    "TopicPartition",
    "enqueue",
    "event_kind",
    "kafka_errors",
]

_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]

_OWN = {**OWNED, "enable.auto.offset.store": False, "enable.partition.eof": True}  # of each consumer

# A deep prefetch while loading, small buffers afterwards so that memory falls again. Deeper is slower: a million queued
# messages of 110 bytes took 30 % longer than 50,000, in page faults. A control record behind the last value is only
# noticed with the next fetch, hence the short waits.
_PROFILES: dict[str, dict[str, Any]] = {
    "load": {
        "queued.max.messages.kbytes": 262144,
        "queued.min.messages": 50_000,
        "fetch.message.max.bytes": 1 << 20,
        "fetch.max.bytes": 64 << 20,
        "fetch.wait.max.ms": 10,
        "fetch.queue.backoff.ms": 10,
    },
    "follow": {
        "queued.max.messages.kbytes": 4096,
        "queued.min.messages": 1000,
        "fetch.wait.max.ms": 50,
        "fetch.queue.backoff.ms": 10,
    },
}


class Kafka(Admin):
    """A cluster and how to talk to it: checked properties, an admin client on demand, consumers.

    Thread-safe. Constructing it opens no connection and leaves no thread behind (it may happen before a fork); the
    admin client is made on first use and belongs to that process. ``repr`` hides secrets. Raises ConfigError with all
    problems for properties that the client library refuses, and where threads are greenlets. A login that the cluster
    refuses raises ConfigError, and Unreachable if it has taken it before.
    """

    def __init__(self, kafka: str | Mapping[str, Any]) -> None:
        properties, problems = normalise(kafka)
        check(properties, [*thread_problems(), *problems])
        super().__init__(properties)

    def __repr__(self) -> str:
        return f"Kafka({printable(self._properties)})"

    def list_producers_command(self, partition: Partition) -> str:
        """Return the command of Kafka that lists the producers of a partition, those with open transactions too.

        Source: KIP-664.
        """
        return (
            f"kafka-transactions.sh --bootstrap-server {self.bootstrap} describe-producers"
            f" --topic {partition.topic} --partition {partition.partition}"
        )

    def properties(self, **overrides: Any) -> dict[str, Any]:
        """Return the client properties (secrets included: never log them) for a client of one's own."""
        return {**self._properties, **overrides}

    def topics(self, names: Iterable[str], timeout: float = 10.0) -> dict[str, Topic]:
        """Describe topics by name; those that do not exist are absent. Never creates one.

        Raises Unreachable after ``timeout`` seconds, ConfigError when the cluster refuses us.
        """
        return {
            name: Topic(
                name=name,
                topic_id=_topic_id(answer.topic_id),
                partitions=tuple(sorted(part.id for part in answer.partitions)),
            )
            for name, answer in self._describe_topics(names, timeout).items()
        }

    def lacking_rights(self, names: Iterable[str], operations: Iterable[str], timeout: float = 10.0) -> list[str]:
        """Return a problem for each of these ACL operations (``Read``, ``Write`` …) that we lack on a topic.

        No problem is reported for topics that do not exist, and for brokers that do not report rights.
        """
        problems = []
        for name, answer in self._describe_topics(names, timeout, with_rights=True).items():
            granted = {item.name.replace("_", "").lower() for item in answer.authorized_operations or ()}
            missing = [operation for operation in operations if granted and operation.lower() not in granted]
            problems += [self.missing_right(f"{operation.lower()} a topic", operation, name) for operation in missing]
        return problems

    def topic_names(self, timeout: float = 10.0) -> list[str]:
        """Return the names of all topics that are visible to us, internal ones left out."""
        metadata = self.request("list topics", timeout, lambda client, limit: client.list_topics(timeout=limit))
        return sorted(name for name in metadata.topics if not name.startswith("__"))

    def absence(self, name: str, remedy: str, timeout: float = 10.0) -> str:
        """Return the error of a topic that does not exist: the nearest name, and the remedy. Raises Unreachable."""
        similar = get_close_matches(name, self.topic_names(timeout), n=1, cutoff=0.75)
        hint = f"did you mean {similar[0]!r}? Else " if similar else ""
        return f"topic {name!r} does not exist on {self.bootstrap}: {hint}{remedy}"

    def cluster_id(self, timeout: float = 10.0) -> str:
        """Return the cluster's id. Raises Unreachable."""
        return str(self._describe_cluster(timeout).cluster_id)

    def high_watermarks(self, partitions: Iterable[Partition], timeout: float = 10.0) -> dict[Partition, int]:
        """Return the end of each partition, open transactions included (READ_UNCOMMITTED).

        A read_committed consumer would get the last stable offset instead, which an open transaction holds back.
        Partitions that do not exist are absent.
        """
        return self._list_offsets(partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED, timeout)

    def stable_offsets(self, partitions: Iterable[Partition], timeout: float = 10.0) -> dict[Partition, int]:
        """Return the last stable offset of each partition: where a read_committed reader has to stop."""
        return {part: offset for part, (offset, _epoch) in self.stable_ends(partitions, timeout).items()}

    def stable_ends(
        self, partitions: Iterable[Partition], timeout: float = 10.0
    ) -> dict[Partition, tuple[int, int | None]]:
        """Return the last stable offset of each partition with the log's leader epoch, which old brokers don't know."""
        answers = self._offset_answers(partitions, _LATEST, IsolationLevel.READ_COMMITTED, timeout)
        return {part: (answer.offset, answer.leader_epoch) for part, answer in answers.items()}

    def log_starts(self, partitions: Iterable[Partition], timeout: float = 10.0) -> dict[Partition, int]:
        """Return the first offset that is still in the log of each partition."""
        return self._list_offsets(partitions, _EARLIEST, IsolationLevel.READ_UNCOMMITTED, timeout)

    def offsets_at(
        self, partitions: Iterable[Partition], timestamp_ms: int, timeout: float = 10.0
    ) -> dict[Partition, int]:
        """Return the first offset of each partition whose record is as new as this (ms since 1970), else its end."""
        at_time: OffsetSpec = OffsetSpec.for_timestamp(timestamp_ms)
        offsets = self._list_offsets(partitions, at_time, IsolationLevel.READ_UNCOMMITTED, timeout)
        ends = self.high_watermarks([part for part, offset in offsets.items() if offset < 0], timeout)
        return {**offsets, **ends}

    def topic_configs(self, names: Iterable[str], timeout: float = 10.0) -> dict[str, dict[str, str]]:
        """Return the effective configuration of each topic that exists."""
        resources = {ConfigResource(ResourceType.TOPIC, name): name for name in names}
        answers = self.request_parts(
            "describe topic configurations",
            "DescribeConfigs",
            timeout,
            lambda client, limit: client.describe_configs(list(resources), request_timeout=limit),
        )
        return {
            resources[resource]: {entry.name: entry.value for entry in answer.values()}
            for resource, answer in answers.items()
        }

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication: int = -1,
        config: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> bool:
        """Create a topic; -1 means the broker's default. Return False when it exists already.

        Raises Unreachable also while fewer brokers are up than the default number of replicas.
        """
        topic = NewTopic(name, partitions, replication, config=dict(config or {}))

        def create(client: AdminClient, _limit: float) -> bool:
            try:
                client.create_topics([topic], operation_timeout=timeout)[name].result()
            except KafkaException as error:
                if code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                    return False
                if code_of(error) in FORBIDDEN:
                    raise ConfigError(self.missing_right("create topics", "Create", name)) from error
                if code_of(error) == KafkaError.INVALID_REPLICATION_FACTOR and replication < 0:  # brokers are away
                    raise Unreachable("Kafka", f"could not create topic {name!r}: {error.args[0].str()}") from error
                raise
            finally:
                del client  # the traceback of a cause that is kept must not keep it
            return True

        return self.request(f"create topic {name!r}", 0.0, create)

    def consumer(
        self,
        profile: Literal["load", "follow"],
        on_error: Callable[[KafkaError], None] | None = None,
        *,
        committed: bool = True,
    ) -> Consumer:
        """Return a consumer that assigns partitions itself, reads committed and never resets an offset by itself.

        Without ``committed`` it also reads records of transactions that are open or were aborted.
        ``load`` fetches far ahead, ``follow`` keeps small buffers; properties of the user win over both. It belongs to
        the thread that uses it. ``on_error`` is called with errors of the client as a whole during ``consume``, before
        the user's ``error_cb``.
        """
        settings = {"group.id": "compactory", **_PROFILES[profile], **self.client_properties(on_error), **_OWN}
        if not committed:
            settings["isolation.level"] = "read_uncommitted"
        return Consumer(settings, logger=self.log)

    def member(self, settings: Mapping[str, Any]) -> Consumer:
        """Return a consumer for ``subscribe``: the group assigns its partitions, the caller sets their offsets.

        The user's properties win over ``settings`` but for the group's id. Raises ConfigError for what the client
        library refuses.
        """
        chosen = {**settings, **self.client_properties(None), "group.id": settings["group.id"], **_OWN}
        with _refused_properties("consumer", chosen):
            return Consumer(chosen, logger=self.log)

    def producer(
        self,
        defaults: Mapping[str, Any],
        overrides: Mapping[str, Any],
        on_error: Callable[[KafkaError], None],
        on_log: Callable[[str, str], None] | None = None,
    ) -> Producer:
        """Return a producer: the user's properties win over ``defaults``, ``overrides`` over both.

        ``on_log`` is called with the facility (such as FAIL) and the text of each log line during ``poll``.

        ``on_error`` is called with errors of the client as a whole during ``poll``, before the user's ``error_cb``.
        Raises ConfigError for a property that the client library refuses.
        """
        settings = {**defaults, **self.client_properties(on_error), **overrides}
        with _refused_properties("producer", settings):
            return Producer(settings, logger=self.log.with_listener(on_log))

    def _describe_cluster(self, timeout: float) -> Any:
        return self.request_parts(
            "describe the cluster",
            "Describe",
            timeout,
            lambda client, limit: {"cluster": client.describe_cluster(request_timeout=limit)},
        )["cluster"]

    def _describe_topics(self, names: Iterable[str], timeout: float, *, with_rights: bool = False) -> dict[str, Any]:
        """Return the client's descriptions of the topics that exist, with our rights if those are requested."""
        topics = TopicCollection(list(names))
        if not topics.topic_names:
            return {}
        return self.request_parts(
            "describe topics",
            "Describe",
            timeout,
            lambda client, limit: client.describe_topics(
                topics, include_authorized_operations=with_rights, request_timeout=limit
            ),
        )

    def _list_offsets(
        self, partitions: Iterable[Partition], spec: OffsetSpec, isolation: IsolationLevel, timeout: float
    ) -> dict[Partition, int]:
        answers = self._offset_answers(partitions, spec, isolation, timeout)
        return {part: answer.offset for part, answer in answers.items()}

    def _offset_answers(
        self, partitions: Iterable[Partition], spec: OffsetSpec, isolation: IsolationLevel, timeout: float
    ) -> dict[Partition, Any]:
        specs = {TopicPartition(part.topic, part.partition): spec for part in partitions}
        if not specs:
            return {}
        answers = self.request_parts(
            "list offsets",
            "Describe",
            timeout,
            lambda client, limit: client.list_offsets(specs, isolation_level=isolation, request_timeout=limit),
        )
        return {Partition(part.topic, part.partition): answer for part, answer in answers.items()}


def enqueue(producer: Producer, deadline: float, topic: str, value: bytes | None, key: Any, **options: Any) -> None:
    """Put a record into the producer's queue; wait while that is full, as Kafka is slow or the queue small.

    ``deadline`` is of the monotonic clock. Raises KafkaException once it has passed.
    """
    while True:
        try:
            producer.produce(topic, value, key, **options)
        except BufferError:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._QUEUE_FULL, "the producer's queue stays full")) from None  # noqa: SLF001
            producer.poll(0.02)
        else:
            return


@contextmanager
def _refused_properties(kind: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """Raise ConfigError where the client library refuses properties, without quoting secrets."""
    try:
        yield
    except KafkaException as error:
        reason = without_secrets(error.args[0].str(), settings)
        raise ConfigError(f"the {kind}'s properties (librdkafka's names) are refused: {reason}") from error


def _topic_id(uuid: Any) -> str | None:
    """Return the id as Kafka prints it; brokers before 2.8 send zeroes."""
    text = str(uuid)
    return text if uuid is not None and text.strip("A") else None
