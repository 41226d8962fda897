# ruff: noqa: SLF001  (the names of the client's own error codes start with an underscore)
# pyright: reportPrivateImportUsage=false
"""Requests to a cluster by the library's admin client: repeated until a deadline, with errors of ours.

Only this module, `compactory.kafka.client` and `compactory.kafka.errors` import the client library. Facts were checked
on confluent-kafka 2.16 (librdkafka 2.16) against Apache Kafka 4.1.
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

from compactory.errors import CompactoryError, ConfigError, StoreClosed, Unreachable
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
from compactory.threads import contained_callbacks, in_forked_children, keep_forever

__all__ = ["Admin"]

A = TypeVar("A")
Part = TypeVar("Part")
_FORBIDDEN = object()  # stands for an answer that an ACL forbids
_INTERRUPT_INTERVAL = 0.1  # seconds between two looks whether the store was closed
_ATTEMPT_TIMEOUT = 2.0  # seconds that one attempt may take within the deadline of its request
_CONTROLLER_TIMEOUT = 5.0  # seconds that a client may take to reach the controller
_RETRY_INTERVAL = 0.05  # seconds


class Admin:
    """Requests to a cluster by an admin client, which is made on first use and belongs to its process. Thread-safe."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.log = ClientLog(self.without_secrets)
        self._properties = dict(properties)
        callback = properties.get("oauth_cb") if mechanism(properties) == "OAUTHBEARER" else None
        self._tokens = TokenSource(callback) if callback is not None else None
        self._client: AdminClient | None = None
        self._client_made_at = 0.0
        self._client_error: KafkaError | None = None  # the last error of the client as a whole
        self._interrupted = Event()
        self._has_answered = False  # once the cluster has answered, the properties are right
        in_forked_children(self.leave_to_parent)

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers as the user gave them."""
        return str(self._properties["bootstrap.servers"])

    def request(self, action: str, timeout: float, send: Callable[[AdminClient, float], A]) -> A:
        """Repeat a request until it succeeds, is refused, or ``timeout`` seconds are over; return its answer.

        ``send`` gets the client and the seconds that one attempt may take. ``action`` completes "could not …" in an
        error. Raises ConfigError, Unreachable, CompactoryError; StoreClosed after `interrupt`.
        """
        self._poll_client_error()
        self._client_error = None  # an earlier error is not the reason of a failure from here on
        try:
            with self.mapped_errors(action, self._poll_client_error):
                answer = self._repeat(timeout, send)
        except Unreachable:
            self._client = None  # a firewall may have forgotten connections that the library keeps for long
            raise
        self._has_answered = True
        return answer

    def request_parts(
        self,
        action: str,
        operation: str,
        timeout: float,
        send: Callable[[AdminClient, float], Mapping[Part, Future[Any]]],
    ) -> dict[Part, Any]:
        """Return the answer to each part of a request, as `request` does; parts that do not exist are left out.

        Raises ConfigError with every topic on which the ACL operation ``operation`` is missing.
        """

        def send_parts(client: AdminClient, attempt_timeout: float) -> dict[Part, Any]:
            futures = send(client, attempt_timeout)
            while wait(futures.values(), _INTERRUPT_INTERVAL).not_done:
                self._raise_if_interrupted()
            return {part: _answer(future) for part, future in futures.items()}

        answers = self.request(action, timeout, send_parts)
        forbidden_topics = sorted({_topic_of(part) for part, answer in answers.items() if answer is _FORBIDDEN})
        if forbidden_topics:
            raise ConfigError(self.missing_right(action, operation, topic) for topic in forbidden_topics)
        return {part: answer for part, answer in answers.items() if answer is not None}

    @contextmanager
    def mapped_errors(self, action: str, client_error: Callable[[], KafkaError | None]) -> Iterator[None]:
        """Map errors of any client of this cluster to ours.

        ``action`` completes "could not …" in the error; ``client_error`` returns the client's last error as a whole.
        """
        with kafka_errors(action, self.bootstrap, client_error, lambda: self._has_answered):
            yield

    def missing_right(self, action: str, operation: str, topic: str) -> str:
        """Return the problem of a missing ACL operation, with the command that grants it."""
        user = self._properties.get("sasl.username", "NAME")
        return (
            f"Kafka at {self.bootstrap} refused to {action}: {user} lacks the ACL operation {operation} on topic"
            f" {topic!r}; kafka-acls.sh --bootstrap-server {self.bootstrap} --add --allow-principal User:{user}"
            f" --operation {operation} --topic {topic}"
        )

    def client_properties(self, on_error: Callable[[KafkaError], None] | None = None) -> dict[str, Any]:
        """Return the user's properties for a new client, for which a token is fetched where it needs one.

        Errors of the user's callbacks are logged and not raised. ``on_error`` is called before the user's ``error_cb``.
        Raises Unreachable or ConfigError when ``oauth_cb`` gives no token.
        """
        properties = {**self._properties, **contained_callbacks(self._properties, on_error)}
        if self._tokens is None:
            return properties
        self._tokens(self._properties.get("sasl.oauthbearer.config"))
        return {**properties, "oauth_cb": self._tokens}

    def without_secrets(self, text: str) -> str:
        """Return a text with secrets replaced."""
        text = without_secrets(text, self._properties)
        return self._tokens.hidden(text) if self._tokens is not None else text

    def interrupt(self) -> None:
        """End the running requests, and all later ones, with StoreClosed. For any thread."""
        self._interrupted.set()

    def close(self) -> None:
        """Drop the client. Safe to call twice; the next request makes a new one."""
        self._client = None

    def leave_to_parent(self) -> None:
        """Forget the client without destroying it; in a forked child."""
        if self._client is not None:
            keep_forever(self._client)
        self._client = None

    def _repeat(self, timeout: float, send: Callable[[AdminClient, float], A]) -> A:
        deadline = time.monotonic() + timeout
        while True:
            self._raise_if_interrupted()
            attempt_timeout = max(0.1, min(deadline - time.monotonic(), _ATTEMPT_TIMEOUT))
            try:
                return send(self._current_client(), attempt_timeout)
            except (
                CompactoryError
            ) as error:  # frames of an error that is kept would keep the client and its connections
                raise error.with_traceback(None)  # noqa: B904
            except KafkaException as error:
                if code_of(error) not in PASSING or self._is_refused() or deadline - time.monotonic() <= 0.1:
                    raise error.with_traceback(None)  # noqa: B904
                if self._has_old_metadata(error):
                    self._client = None
            self._interrupted.wait(_RETRY_INTERVAL)

    def _current_client(self) -> AdminClient:
        """Return the client. Hold it until all parts are answered: futures of a client that is gone never are."""
        client = self._client
        if client is None:
            self._client_made_at = time.monotonic()
            self._client = client = AdminClient(self.client_properties(self._remember_error), logger=self.log)
        return client

    def _has_old_metadata(self, error: KafkaException) -> bool:
        """Return True if the client would go on asking an old leader, or a controller that has died, for minutes."""
        is_slow = time.monotonic() - self._client_made_at > _CONTROLLER_TIMEOUT
        return code_of(error) in OLD_LEADER or ("waiting for controller" in str(error) and is_slow)

    def _is_refused(self) -> bool:
        """Return True if trying again is no use. After a first answer another broker may take the login."""
        client_error = self._poll_client_error()
        return not self._has_answered and client_error is not None and is_refusal(client_error)

    def _remember_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._client_error is None:  # which says less than others
            self._client_error = error

    def _poll_client_error(self) -> KafkaError | None:
        """Return the last error of the client as a whole, which says why a request timed out.

        The client reports it only while it is polled.
        """
        if self._client is not None:
            self._client.poll(0)
        return self._client_error

    def _raise_if_interrupted(self) -> None:
        if self._interrupted.is_set():
            raise StoreClosed("the store was closed")


def _answer(future: Future[Any]) -> Any:
    try:
        answer = future.result()
    except KafkaException as error:
        if code_of(error) in ABSENT:
            return None
        if code_of(error) in FORBIDDEN:
            return _FORBIDDEN
        raise
    if getattr(answer, "offset", 0) == OFFSET_INVALID:  # of list_offsets: other brokers answered, this leader did not
        raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION, "a partition's leader does not answer"))
    return answer


def _topic_of(part: Any) -> str:
    """Return the topic of a part of a request, which is a name, a TopicPartition or a ConfigResource."""
    return str(getattr(part, "topic", None) or getattr(part, "name", None) or part)
