# ruff: noqa: SLF001  (the names of the client's own error codes start with an underscore)
# pyright: reportPrivateImportUsage=false
"""The one module that talks to Kafka through its client: admin look-ups, consumers, producers.

Everything above it deals in `Partition`, offsets and `Message`; `compactory.kafka_errors` maps what goes wrong. Facts
were checked on confluent-kafka 2.16 (librdkafka 2.16) against Apache Kafka 4.1.
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

from compactory.credentials import mechanism
from compactory.errors import ConfigError
from compactory.kafka_errors import (
    ABSENT,
    FORBIDDEN,
    PASSING,
    ClientLog,
    check,
    code_of,
    event_kind,
    is_refusal,
    kafka_errors,
)
from compactory.listener import look, mismatch
from compactory.oauth import TokenSource
from compactory.properties import OWNED, normalise, printable, without_secrets
from compactory.records import Partition, Topic

__all__ = [
    "Consumer",
    "Kafka",
    "KafkaError",
    "KafkaException",
    "Message",
    "Producer",
    "TopicPartition",
    "event_kind",
    "kafka_errors",
]

log = logging.getLogger("compactory.kafka")

A = TypeVar("A")
R = TypeVar("R")
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_NO_RIGHT = object()  # stands for an answer that an ACL forbids
_CLOSED = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)  # a connection was made, and ended without a reason
_ATTEMPT = 2.0  # seconds that one admin request may take before it is tried again within the deadline

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


class Kafka:
    """A cluster and how to talk to it: checked properties, an admin client on demand, consumers.

    Thread-safe. Constructing it opens no connection and leaves no thread behind (it may happen before a fork); the
    admin client is made on first use and belongs to that process. ``repr`` hides secrets. Raises ConfigError with all
    problems for properties that the client library refuses.
    """

    def __init__(self, kafka: str | Mapping[str, Any]) -> None:
        self._properties = normalise(kafka)
        check(self._properties)
        callback = self._properties.get("oauth_cb") if mechanism(self._properties) == "OAUTHBEARER" else None
        self._tokens = TokenSource(callback) if callback is not None else None
        self._log = ClientLog(self._hidden)
        self._admin: AdminClient | None = None
        self._inherited: list[AdminClient] = []  # of parents: destroying them would wait for their threads
        self._admin_pid = 0
        self._last_error: KafkaError | None = None
        self._answered = False  # whether the cluster ever did: from then on the properties are right

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
            metadata = self._insist(timeout, lambda limit: self._client().list_topics(timeout=limit))
        return sorted(name for name in metadata.topics if not name.startswith("__"))

    def cluster_id(self, timeout: float = 10.0) -> str | None:
        """Return the cluster's id. Raises Unreachable."""
        asked = "the cluster"
        answers = self._ask(
            "describe the cluster", "Describe", timeout, lambda a, t: {asked: a.describe_cluster(request_timeout=t)}
        )
        return str(answers[asked].cluster_id) if answers[asked] is not None else None

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
                client = self._client()
                client.create_topics([new], operation_timeout=timeout)[name].result()
            except KafkaException as error:
                if code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                    return False
                if code_of(error) in FORBIDDEN:
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
        settings = {"group.id": "compactory", **_PROFILES[profile], **self._given(), **own}
        if on_error is not None and "error_cb" not in settings:
            settings["error_cb"] = on_error
        return Consumer(settings, logger=self._log)

    def producer(
        self, defaults: Mapping[str, Any], overrides: Mapping[str, Any], on_error: Callable[[KafkaError], None]
    ) -> Producer:
        """Return a producer: the user's properties win over ``defaults``, ``overrides`` over both.

        Raises ConfigError for a property that the client library refuses.
        """
        settings = {**defaults, **self._given(), **overrides, "error_cb": on_error}
        try:
            return Producer(settings, logger=self._log)
        except KafkaException as error:
            reason = without_secrets(error.args[0].str(), settings)
            raise ConfigError(f"the producer's properties (librdkafka's names) are refused: {reason}") from error

    def close(self) -> None:
        """Drop the admin client. Safe to call twice; the next use makes a new one."""
        self._admin = None

    def _client(self) -> AdminClient:
        if self._admin is None or self._admin_pid != os.getpid():
            if self._admin is not None:
                self._inherited.append(self._admin)
            settings = {"error_cb": self._remember, **self._given()}
            self._admin = AdminClient(settings, logger=self._log)
            self._admin_pid = os.getpid()
        return self._admin

    def _given(self) -> dict[str, Any]:
        """Return the user's properties for a new client, for which a token is at hand where it needs one.

        Raises Unreachable or ConfigError when ``oauth_cb`` gives none.
        """
        if self._tokens is None:
            return self._properties
        self._tokens(self._properties.get("sasl.oauthbearer.config"))
        return {**self._properties, "oauth_cb": self._tokens}

    def _hidden(self, text: str) -> str:
        text = without_secrets(text, self._properties)
        return self._tokens.hidden(text) if self._tokens is not None else text

    def _remember(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._last_error is None:  # which says less than the others
            self._last_error = error

    @contextmanager
    def _mapped(self, doing: str) -> Iterator[None]:
        self._poll()
        self._last_error = None  # what came to light before is not the reason of what comes now
        with kafka_errors(doing, self.bootstrap, self._why, self._explain):
            yield
        self._answered = True

    def _why(self) -> KafkaError | None:
        """Return the last client-wide error; it says why a request timed out."""
        self._poll()
        return self._last_error

    def _poll(self) -> None:
        """Hear the admin client's errors, which wait until somebody polls."""
        if self._admin is not None and self._admin_pid == os.getpid():
            self._admin.poll(0)

    def _explain(self) -> str | None:
        """Say which property does not fit the listener that we can't talk to, if the listener shows it."""
        why = self._last_error
        if why is None or why.code() != KafkaError._SSL:
            told = why is not None and (why.code() not in _CLOSED or "Connect to" in why.str())
            if self._answered or told:
                return None
        listener = look(self._properties, why.str() if why is not None else "")
        return mismatch(self._properties, listener) if listener is not None else None

    def _insist(self, timeout: float, request: Callable[[float], A]) -> A:
        """Repeat ``request`` (its argument: seconds it may take) until it succeeds, is hopeless or time is up."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                return request(max(0.1, min(left, _ATTEMPT)))
            except KafkaException as error:
                if code_of(error) not in PASSING or left <= 0 or self._is_hopeless():
                    raise
            time.sleep(min(0.05, max(0.0, left)))

    def _is_hopeless(self) -> bool:
        why = self._why()
        return (why is not None and is_refusal(why)) or self._explain() is not None

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

        def ask(limit: float) -> dict[R, Any]:
            client = self._client()  # held until all is answered: futures of a client that is gone never are
            try:
                futures = request(client, limit)
                return {name: _answer(future) for name, future in futures.items()}
            finally:
                del client  # not held by the traceback of an error that somebody keeps

        with self._mapped(doing):
            answers = self._insist(timeout, ask)
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


def _answer(future: Future[Any]) -> Any:
    try:
        return future.result()
    except KafkaException as error:
        if code_of(error) in ABSENT:
            return None
        if code_of(error) in FORBIDDEN:
            return _NO_RIGHT
        raise


def _topic_of(asked: Any) -> str:
    """The topic that a part of a request is about: a name, a TopicPartition or a ConfigResource."""
    return str(getattr(asked, "topic", None) or getattr(asked, "name", None) or asked)


def _topic_id(uuid: Any) -> str | None:
    """Return the id as Kafka prints it; brokers before 2.8 send zeroes."""
    text = str(uuid)
    return text if uuid is not None and text.strip("A") else None
