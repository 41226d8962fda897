# ruff: noqa: SLF001  (the names of the client's own error codes start with an underscore)
# pyright: reportPrivateImportUsage=false
"""Requests to a cluster through the client's admin side: repeated until a deadline, their errors ours.

One of the modules that import the client, beside `compactory.kafka.client`, which says what is asked, and
`compactory.kafka.errors`. Facts were checked on confluent-kafka 2.16 (librdkafka 2.16) against Apache Kafka 4.1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Event
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from compactory.callbacks import contained_callbacks
from compactory.cleanup import in_forked_children, keep_forever
from compactory.errors import ConfigError, StoreClosed, Unreachable
from compactory.kafka.credentials import mechanism
from compactory.kafka.errors import (
    ABSENT,
    FORBIDDEN,
    OLD_LEADER,
    PASSING,
    ClientLog,
    code_of,
    is_refusal,
    kafka_errors,
)
from compactory.kafka.oauth import TokenSource
from compactory.kafka.properties import without_secrets

__all__ = ["Admin"]

A = TypeVar("A")
R = TypeVar("R")
_NO_RIGHT = object()  # stands for an answer that an ACL forbids
_GLANCE = 0.1  # seconds between two looks whether an answer is still wanted
_ATTEMPT = 2.0  # seconds that one request may take before it is tried again within the deadline
_CONNECT = 5.0  # seconds that a client may take to reach the controller


class Admin:
    """The admin client of a cluster, made on first use. Thread-safe. Belongs to the process that uses it."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.log = ClientLog(self.hidden)
        self._properties = dict(properties)
        callback = properties.get("oauth_cb") if mechanism(properties) == "OAUTHBEARER" else None
        self._tokens = TokenSource(callback) if callback is not None else None
        self._admin: AdminClient | None = None
        self._made_at = 0.0
        self._last_error: KafkaError | None = None
        self._interrupted = Event()
        self._answered = False  # whether the cluster ever did: from then on the properties are right
        in_forked_children(self.leave_to_parent)

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers as given."""
        return str(self._properties["bootstrap.servers"])

    def close(self) -> None:
        """Drop the client. Safe to call twice; the next use makes a new one."""
        self._admin = None

    def interrupt(self) -> None:
        """End what is asked, and all that will be, with StoreClosed. For any thread."""
        self._interrupted.set()

    def client(self) -> AdminClient:
        """Return the client. Hold it until all is answered: futures of a client that is gone never are."""
        client = self._admin
        if client is None:
            self._made_at = time.monotonic()
            self._admin = client = AdminClient(self.given(self._remember), logger=self.log)
        return client

    def given(self, on_error: Callable[[KafkaError], None] | None = None) -> dict[str, Any]:
        """Return the user's properties for a new client, for which a token is at hand where it needs one.

        What callbacks raise is contained; ``on_error`` is called before the user's ``error_cb``. Raises Unreachable or
        ConfigError when ``oauth_cb`` gives no token.
        """
        found = {**self._properties, **contained_callbacks(self._properties, on_error)}
        if self._tokens is None:
            return found
        self._tokens(self._properties.get("sasl.oauthbearer.config"))
        return {**found, "oauth_cb": self._tokens}

    def leave_to_parent(self) -> None:
        """Forget the client without destroying it; in a forked child."""
        if self._admin is not None:
            keep_forever(self._admin)
        self._admin = None

    def hidden(self, text: str) -> str:
        """Return a text with secrets replaced."""
        text = without_secrets(text, self._properties)
        return self._tokens.hidden(text) if self._tokens is not None else text

    def _remember(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._last_error is None:  # which says less than the others
            self._last_error = error

    @contextmanager
    def mapped(self, doing: str) -> Iterator[None]:
        """Map the errors of requests to ours; see `kafka_errors`."""
        self._poll()
        self._last_error = None  # what came to light before is not the reason of what comes now
        try:
            with self.explained(doing, self._why):
                yield
        except Unreachable:
            self._admin = None  # the network may have forgotten its connections, which the library keeps for long
            raise
        self._answered = True

    @contextmanager
    def explained(self, doing: str, why: Callable[[], KafkaError | None]) -> Iterator[None]:
        """Map the errors of any client of this cluster to ours; ``why`` gives its last client-wide error."""
        with kafka_errors(doing, self.bootstrap, why, lambda: self._answered):
            yield

    def _why(self) -> KafkaError | None:
        """Return the last client-wide error; it says why a request timed out."""
        self._poll()
        return self._last_error

    def _poll(self) -> None:
        """Poll the admin client, which keeps its errors until then."""
        client = self._admin
        if client is not None:
            client.poll(0)

    def insist(self, timeout: float, request: Callable[[float], A]) -> A:
        """Repeat ``request`` (its argument: seconds it may take) until it succeeds, is hopeless or time is up."""
        deadline = time.monotonic() + timeout
        while True:
            if self._interrupted.is_set():
                raise StoreClosed("the store was closed")
            try:
                return request(max(0.1, min(deadline - time.monotonic(), _ATTEMPT)))
            except KafkaException as error:
                if code_of(error) not in PASSING or self._is_hopeless() or deadline - time.monotonic() <= 0.1:
                    raise
                # This client would go on asking an old leader, and waiting for a controller that has died, for minutes.
                waited = "waiting for controller" in str(error) and time.monotonic() - self._made_at > _CONNECT
                if code_of(error) in OLD_LEADER or waited:
                    self._admin = None
            self._interrupted.wait(0.05)

    def _is_hopeless(self) -> bool:
        """Whether trying again is no use. It is of use once a broker has answered: another one may take the login."""
        why = self._why()
        return not self._answered and why is not None and is_refusal(why)

    def ask(
        self, doing: str, right: str, timeout: float, request: Callable[[AdminClient, float], Mapping[R, Future[Any]]]
    ) -> dict[R, Any]:
        """Send ``request`` until every part is answered or ``timeout`` is over; return the answers about what exists.

        Raises ConfigError with every topic on which the ACL operation ``right`` is missing.
        """

        def ask(limit: float) -> dict[R, Any]:
            client = self.client()
            try:
                futures = request(client, limit)
                while wait(futures.values(), _GLANCE).not_done:
                    if self._interrupted.is_set():
                        raise StoreClosed("the store was closed")
                return {name: _answer(future) for name, future in futures.items()}
            finally:
                del client  # not held by the traceback of an error that is kept

        with self.mapped(doing):
            answers = self.insist(timeout, ask)
        refused_to = sorted({_topic_of(name) for name, answer in answers.items() if answer is _NO_RIGHT})
        if refused_to:
            raise ConfigError(self.forbidden(doing, right, topic) for topic in refused_to)
        return {name: answer for name, answer in answers.items() if answer is not None}

    def forbidden(self, doing: str, right: str, topic: str) -> str:
        """Say which right is missing, and how to give it."""
        user = self._properties.get("sasl.username", "NAME")
        return (
            f"Kafka at {self.bootstrap} refused to {doing}: {user} lacks the ACL operation {right} on topic {topic!r};"
            f" kafka-acls.sh --bootstrap-server {self.bootstrap} --add --allow-principal User:{user}"
            f" --operation {right} --topic {topic}"
        )


def _answer(future: Future[Any]) -> Any:
    try:
        found = future.result()
    except KafkaException as error:
        if code_of(error) in ABSENT:
            return None
        if code_of(error) in FORBIDDEN:
            return _NO_RIGHT
        raise
    if getattr(found, "offset", 0) == OFFSET_INVALID:  # of list_offsets: other brokers answered, this leader did not
        raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION, "a partition's leader does not answer"))
    return found


def _topic_of(asked: Any) -> str:
    """The topic that a part of a request is about: a name, a TopicPartition or a ConfigResource."""
    return str(getattr(asked, "topic", None) or getattr(asked, "name", None) or asked)
