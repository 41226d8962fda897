# ruff: noqa: SLF001  (the names of the client's own error codes start with an underscore)
# pyright: reportPrivateImportUsage=false
"""The one module that imports the Kafka client: configuration, admin look-ups, consumers, error mapping.

Everything above it deals in `Partition`, offsets and `Message`. Facts were checked on confluent-kafka 2.16
(librdkafka 2.16) against Apache Kafka 4.1.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

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

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.properties import OWNED, nearest_property, normalise, printable, without_secrets
from compactory.records import Partition, Topic

__all__ = ["Consumer", "Kafka", "KafkaError", "Message", "TopicPartition", "event_kind", "kafka_errors"]

log = logging.getLogger("compactory.kafka")

R = TypeVar("R")
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_NO_RIGHT = object()  # stands for an answer that an ACL forbids
_ATTEMPT = 2.0  # seconds that one admin request may take before it is tried again within the deadline
_UNREACHABLE = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT,
                          KafkaError._RESOLVE, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT})  # fmt: skip
_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL,
                      KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
                      KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                      KafkaError.UNSUPPORTED_SASL_MECHANISM, KafkaError.ILLEGAL_SASL_STATE})  # fmt: skip
_FORBIDDEN = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
_PASSING = _UNREACHABLE | {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION,
                           KafkaError.NOT_CONTROLLER, KafkaError._WAIT_CACHE, KafkaError.NETWORK_EXCEPTION,
                           KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.BROKER_NOT_AVAILABLE}  # fmt: skip
_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})

# Large fetches and a deep prefetch while loading, small buffers afterwards so that memory falls again. A control
# record behind the last value is only noticed with the next fetch, hence the short waits.
_PROFILES: dict[str, dict[str, Any]] = {
    "load": {
        "queued.max.messages.kbytes": 262144,
        "queued.min.messages": 1_000_000,
        "fetch.message.max.bytes": 8 << 20,
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


class _ClientLog:
    """Takes the client library's log lines as DEBUG.

    It repeats each failed connection attempt and warns of properties meant for another kind of client (one mapping
    serves them all). What a user has to know is raised or logged by us, once.
    """

    def log(self, _level: int, message: str, *args: object) -> None:
        """Log one line; called by the client library."""
        if args and args[0] != "CONFWARN":
            log.debug(message, *args)


_CLIENT_LOG = _ClientLog()


class Kafka:
    """A cluster and how to talk to it: checked properties, an admin client on demand, consumers.

    Thread-safe. Constructing it opens no connection and leaves no thread behind (it may happen before a fork); the
    admin client is made on first use and belongs to that process. ``repr`` hides secrets. Raises ConfigError with all
    problems for properties that the client library refuses.
    """

    def __init__(self, kafka: str | Mapping[str, Any]) -> None:
        self._properties = normalise(kafka)
        _check(self._properties)
        self._admin: AdminClient | None = None
        self._admin_pid = 0
        self._last_error: KafkaError | None = None

    def __repr__(self) -> str:
        return f"Kafka({printable(self._properties)})"

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers as given."""
        return str(self._properties["bootstrap.servers"])

    def properties(self, **overrides: Any) -> dict[str, Any]:
        """Return the client properties (secrets included: never log them) for a client of one's own."""
        return {**self._properties, **overrides}

    def topics(self, names: Iterable[str], timeout: float = 10.0) -> dict[str, Topic]:
        """Describe topics by name; those that do not exist are absent. Never creates one.

        Raises Unreachable after ``timeout`` seconds, ConfigError when the cluster refuses us.
        """
        found: dict[str, Topic] = {}
        wanted = TopicCollection(list(names))
        answers = self._ask(
            "describe topics", "Describe", timeout, lambda a, t: a.describe_topics(wanted, request_timeout=t)
        )
        for name, answer in answers.items():
            if answer is not None:
                numbers = tuple(sorted(part.id for part in answer.partitions))
                found[name] = Topic(name=name, topic_id=_topic_id(answer.topic_id), partitions=numbers)
        return found

    def lacking_rights(self, names: Iterable[str], operations: Iterable[str], timeout: float = 10.0) -> list[str]:
        """Return a problem for each of these ACL operations (``Read``, ``Write`` …) that we lack on a topic.

        Nothing for topics that do not exist, nor for brokers that do not tell.
        """
        wanted = TopicCollection(list(names))
        if not wanted.topic_names:
            return []
        answers = self._ask(
            "describe topics",
            "Describe",
            timeout,
            lambda a, t: a.describe_topics(wanted, include_authorized_operations=True, request_timeout=t),
        )
        problems = []
        for name, answer in answers.items():
            held = {item.name.replace("_", "").lower() for item in (answer and answer.authorized_operations) or ()}
            missing = [operation for operation in operations if held and operation.lower() not in held]
            problems += [self._forbidden(f"{operation.lower()} a topic", operation, name) for operation in missing]
        return problems

    def topic_names(self, timeout: float = 10.0) -> list[str]:
        """Return the names of all topics that are visible to us, internal ones left out."""
        with self._mapped("list topics"):
            metadata = self._client().list_topics(timeout=timeout)
        return sorted(name for name in metadata.topics if not name.startswith("__"))

    def cluster_id(self, timeout: float = 10.0) -> str | None:
        """Return the cluster's id."""
        with self._mapped("describe the cluster"):
            return self._client().list_topics(timeout=timeout).cluster_id

    def high_watermarks(self, partitions: Iterable[Partition], timeout: float = 10.0) -> dict[Partition, int]:
        """Return the end of each partition, open transactions included (READ_UNCOMMITTED).

        A read_committed consumer would be told the last stable offset instead, which an open transaction holds back.
        Partitions that do not exist are absent.
        """
        return self._offsets(partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED, timeout)

    def stable_offsets(self, partitions: Iterable[Partition], timeout: float = 10.0) -> dict[Partition, int]:
        """Return the last stable offset of each partition: where a read_committed reader has to stop."""
        return self._offsets(partitions, _LATEST, IsolationLevel.READ_COMMITTED, timeout)

    def log_starts(self, partitions: Iterable[Partition], timeout: float = 10.0) -> dict[Partition, int]:
        """Return the first offset that is still in the log of each partition."""
        return self._offsets(partitions, _EARLIEST, IsolationLevel.READ_UNCOMMITTED, timeout)

    def topic_configs(self, names: Iterable[str], timeout: float = 10.0) -> dict[str, dict[str, str]]:
        """Return the effective configuration of each topic that exists."""
        asked = {ConfigResource(ResourceType.TOPIC, name): name for name in names}
        answers = self._ask(
            "describe topic configurations",
            "DescribeConfigs",
            timeout,
            lambda a, t: a.describe_configs(list(asked), request_timeout=t),
        )
        return {
            asked[resource]: {entry.name: entry.value for entry in answer.values()}
            for resource, answer in answers.items()
            if answer is not None
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
        """Create a topic; -1 means the broker's default. Return False when it exists already."""
        new = NewTopic(name, partitions, replication, config=dict(config or {}))
        with self._mapped(f"create topic {name!r}"):
            try:
                self._client().create_topics([new], operation_timeout=timeout)[name].result()
            except KafkaException as error:
                if _code(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                    return False
                if _code(error) in _FORBIDDEN:
                    raise ConfigError(self._forbidden("create topics", "Create", name)) from error
                raise
        return True

    def consumer(
        self, profile: Literal["load", "follow"], on_error: Callable[[KafkaError], None] | None = None
    ) -> Consumer:
        """Return a consumer that assigns partitions itself, reads committed and never resets an offset by itself.

        ``load`` fetches far ahead, ``follow`` keeps small buffers; properties of the user win over both. It belongs to
        the thread that uses it. ``on_error`` hears client-wide errors during ``consume``.
        """
        own = {**OWNED, "enable.auto.offset.store": False, "enable.partition.eof": True}
        settings = {"group.id": "compactory", **_PROFILES[profile], **self._properties, **own}
        if on_error is not None and "error_cb" not in settings:
            settings["error_cb"] = on_error
        return Consumer(settings, logger=_CLIENT_LOG)

    def producer(
        self, defaults: Mapping[str, Any], overrides: Mapping[str, Any], on_error: Callable[[KafkaError], None]
    ) -> Producer:
        """Return a producer: the user's properties win over ``defaults``, ``overrides`` over both.

        Raises ConfigError for a property that the client library refuses.
        """
        settings = {**defaults, **self._properties, **overrides, "error_cb": on_error}
        try:
            return Producer(settings, logger=_CLIENT_LOG)
        except KafkaException as error:
            reason = without_secrets(error.args[0].str(), settings)
            raise ConfigError(f"the producer's properties (librdkafka's names) are refused: {reason}") from error

    def close(self) -> None:
        """Drop the admin client. Safe to call twice; the next use makes a new one."""
        self._admin = None

    def _client(self) -> AdminClient:
        if self._admin is None or self._admin_pid != os.getpid():
            settings = {"error_cb": self._remember, **self._properties}
            self._admin = AdminClient(settings, logger=_CLIENT_LOG)
            self._admin_pid = os.getpid()
        return self._admin

    def _remember(self, error: KafkaError) -> None:
        self._last_error = error

    @contextmanager
    def _mapped(self, doing: str) -> Iterator[None]:
        self._last_error = None
        with kafka_errors(doing, self.bootstrap, self._why):
            yield

    def _why(self) -> KafkaError | None:
        """Return the last client-wide error; it says why a request timed out."""
        if self._admin is not None:
            self._admin.poll(0)
        return self._last_error

    def _offsets(
        self, partitions: Iterable[Partition], spec: OffsetSpec, isolation: IsolationLevel, timeout: float
    ) -> dict[Partition, int]:
        asked = {TopicPartition(part.topic, part.partition): spec for part in partitions}
        if not asked:
            return {}
        answers = self._ask(
            "list offsets",
            "Describe",
            timeout,
            lambda a, t: a.list_offsets(asked, isolation_level=isolation, request_timeout=t),
        )
        return {
            Partition(part.topic, part.partition): answer.offset
            for part, answer in answers.items()
            if answer is not None
        }

    def _ask(
        self, doing: str, right: str, timeout: float, request: Callable[[AdminClient, float], Mapping[R, Future[Any]]]
    ) -> dict[R, Any]:
        """Send ``request`` until every part is answered or ``timeout`` is over; None stands for "does not exist".

        Raises ConfigError with every topic on which the ACL operation ``right`` is missing.
        """
        deadline = time.monotonic() + timeout
        with self._mapped(doing):
            while True:
                left = deadline - time.monotonic()
                try:
                    futures = request(self._client(), max(0.1, min(left, _ATTEMPT)))
                    answers = {name: _answer(future) for name, future in futures.items()}
                except KafkaException as error:
                    why = self._why()
                    refused = why is not None and why.code() in _REFUSED
                    if refused or _code(error) not in _PASSING or left <= 0:
                        raise
                else:
                    break
                time.sleep(min(0.05, max(0.0, left)))
        refused_to = sorted({_topic_of(name) for name, answer in answers.items() if answer is _NO_RIGHT})
        if refused_to:
            raise ConfigError(self._forbidden(doing, right, topic) for topic in refused_to)
        return answers

    def _forbidden(self, doing: str, right: str, topic: str) -> str:
        """Say which right is missing, and how to give it."""
        user = self._properties.get("sasl.username", "NAME")
        return (
            f"Kafka at {self.bootstrap} refused to {doing}: {user} lacks the ACL operation {right} on topic {topic!r};"
            f" kafka-acls.sh --bootstrap-server {self.bootstrap} --add --allow-principal User:{user}"
            f" --operation {right} --topic {topic}"
        )


@contextmanager
def kafka_errors(doing: str, bootstrap: str, why: Callable[[], KafkaError | None] = lambda: None) -> Iterator[None]:
    """Map the client's errors to ours with the cause kept: Unreachable, ConfigError, else CompactoryError.

    ``why`` gives the client-wide error behind a time-out (a refused connection, a failed login), if there is one.
    """
    try:
        yield
    except KafkaException as error:
        behind = why()
        reason = error.args[0].str() if error.args else str(error)
        detail = f"{behind.str()}" if behind is not None else reason
        code = behind.code() if behind is not None and behind.code() in _REFUSED else _code(error)
        if code in _REFUSED:
            remedy = "check security.protocol, sasl.*, ssl.* and the ACLs"
            raise ConfigError(f"Kafka at {bootstrap} refused to {doing}: {detail}; {remedy}") from error
        if code in _UNREACHABLE:
            message = (
                f"Kafka at {bootstrap} was not reached to {doing}: {detail}; check bootstrap.servers and the network"
            )
            raise Unreachable("Kafka", message) from error
        raise CompactoryError(f"could not {doing} on Kafka at {bootstrap}: {reason}") from error


def event_kind(error: KafkaError) -> Literal["end", "lost", "refused", "passing"]:
    """Sort an error event of a consumer.

    ``end``: the end of a partition, at the event's offset. ``lost``: the position is not in the log any more (or not
    yet), which a reader must never paper over. ``refused``: no right to read. ``passing``: the client recovers itself,
    or it is about the consumer group, which the client looks for although nothing of ours belongs to one.
    """
    code = error.code()
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return "passing"
    if code == KafkaError._PARTITION_EOF:
        return "end"
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        return "lost"
    return "refused" if code in _REFUSED else "passing"


def _check(properties: Mapping[str, Any]) -> None:
    """Ask the client library about the properties, one by one if it refuses them; raises ConfigError with all."""
    found = _refusal(properties)
    if found is None:
        return
    base = {"bootstrap.servers": properties["bootstrap.servers"]}
    problems = []
    for name, value in properties.items():
        problem = _refusal({**base, name: value}) if not name.startswith(("sasl.", "ssl.", "security.")) else None
        problem = problem or (_refusal({**base, name: value}, unknown=True))
        if problem is not None:
            near = nearest_property(name) if "No such configuration" in problem else None
            hint = f"; did you mean {near!r}?" if near else ""
            problems.append(f"Kafka property {name!r}: {without_secrets(problem, properties)}{hint}")
    raise ConfigError(problems or [f"Kafka properties: {without_secrets(found, properties)}"])


def _refusal(properties: Mapping[str, Any], *, unknown: bool = False) -> str | None:
    """Return why the library refuses the properties; with ``unknown`` only what does not depend on others."""
    try:
        AdminClient(dict(properties), logger=_CLIENT_LOG)
    except KafkaException as error:
        text = error.args[0].str().strip() if error.args else str(error)
        return None if unknown and text.startswith("Failed to create") else text
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def _answer(future: Future[Any]) -> Any:
    try:
        return future.result()
    except KafkaException as error:
        if _code(error) in _ABSENT:
            return None
        if _code(error) in _FORBIDDEN:
            return _NO_RIGHT
        raise


def _topic_of(asked: Any) -> str:
    """The topic that a part of a request is about: a name, a TopicPartition or a ConfigResource."""
    return str(getattr(asked, "topic", None) or getattr(asked, "name", None) or asked)


def _code(error: KafkaException) -> int:
    return int(error.args[0].code()) if error.args and isinstance(error.args[0], KafkaError) else 0


def _topic_id(uuid: Any) -> str | None:
    """Return the id as Kafka prints it; brokers before 2.8 send zeroes."""
    text = str(uuid)
    return text if uuid is not None and text.strip("A") else None
