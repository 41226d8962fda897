# ruff: noqa: SLF001  (the names of the client's own error codes start with an underscore)
# pyright: reportPrivateImportUsage=false
"""The client's errors and refusals, mapped to ours: what went wrong, which property it is about, what to do.

One of the modules that import the client, beside `client` and `admin`: its error codes and its opinion of properties
are mapped here. It opens no connection. Facts were checked on confluent-kafka 2.16 (librdkafka 2.16).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.kafka.credentials import credential_problems
from compactory.kafka.properties import java_property_problems, nearest_property, without_secrets

__all__ = [
    "ABSENT",
    "FORBIDDEN",
    "OLD_LEADER",
    "PASSING",
    "ClientLog",
    "check",
    "code_of",
    "event_kind",
    "is_refusal",
    "kafka_errors",
    "property_problems",
]

log = logging.getLogger("compactory.kafka")
_SILENT = logging.Logger("silent", logging.CRITICAL + 1)  # of clients that are only made to check their properties

OLD_LEADER = frozenset({KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH,
                        KafkaError.NOT_LEADER_FOR_PARTITION})  # fmt: skip
"""Answers of brokers where the client's metadata of a partition's leader are old."""
PASSING = OLD_LEADER | {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT,
                        KafkaError._RESOLVE, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT,
                        KafkaError._NOENT, KafkaError._DESTROY_BROKER, KafkaError._WAIT_CACHE, KafkaError._QUEUE_FULL,
                        KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_CONTROLLER, KafkaError.NETWORK_EXCEPTION,
                        KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
                        KafkaError.NOT_COORDINATOR, KafkaError.CONCURRENT_TRANSACTIONS,
                        KafkaError.BROKER_NOT_AVAILABLE, KafkaError.NOT_ENOUGH_REPLICAS,
                        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError.KAFKA_STORAGE_ERROR,
                        KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE}  # fmt: skip
# _NOENT: list_offsets while a broker comes back, "Failed to query partition leaders: No leaders found".
# _DESTROY_BROKER: the client forgot the broker that it had asked, as the cluster names it otherwise or no more.
_LOGIN = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL,
                    KafkaError.UNSUPPORTED_SASL_MECHANISM, KafkaError.ILLEGAL_SASL_STATE})  # fmt: skip
_RIGHTS = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
                     KafkaError.GROUP_AUTHORIZATION_FAILED,
                     KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})  # fmt: skip
_REFUSED = _LOGIN | _RIGHTS
FORBIDDEN = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})

# A broker that does not like our certificate ends the connection with one of these alerts of TLS (RFC 8446, 6.2).
_ALERTS = ("alert bad certificate", "alert certificate required", "alert unknown ca", "alert certificate expired",
           "alert certificate unknown", "alert unsupported certificate", "alert certificate revoked")  # fmt: skip
_CERTIFICATE = (
    "the broker wants a client certificate that it trusts: set ssl.certificate.location and ssl.key.location (or"
    " ssl.keystore.location) to one that is signed by an authority in its trust store and has not expired"
)
_LISTENER = "check security.protocol and the port in bootstrap.servers"
_REMEDIES = {
    "Invalid username or password": "check sasl.username and sasl.password",
    "invalid credentials": (
        "check sasl.username and sasl.password, and that the user has a password for this very sasl.mechanism"
        " (kafka-configs.sh --describe --entity-type users)"
    ),
    "Unsupported SASL mechanism": "set sasl.mechanism to one that the broker's listener offers",
    "current SASL state": f"the listener takes no login: {_LISTENER}",
    "invalid_token": (
        "the broker refuses the token: check its issuer, audience, end and signature against the broker's"
        " sasl.oauthbearer.* settings, and the clocks"
    ),
    "trust anchors": "set https.ca.location to the certificate of the authority that signed the token endpoint's",
    "OAUTHBEARER token": (
        "check sasl.oauthbearer.token.endpoint.url, .client.id, .client.secret and https.ca.location, and that the"
        " endpoint answers from here"
    ),
    "certificate verify failed": (
        "set ssl.ca.location to the certificate of the authority that signed the broker's, and use a host name in"
        " bootstrap.servers that the certificate is for"
    ),
    "listener?": _LISTENER,
    "Transactional Id authorization": "grant the ACL operation Write on the transactional id",
}
_UNCHECKED = ("bootstrap.servers", "metadata.broker.list", "oauth_cb")  # without them a client connects to nothing
_CREATION = {
    "key values mismatch": "ssl.key.location: the key does not belong to the certificate",
    "no start line": "an ssl.*.pem property has no line -----BEGIN …: give it with its line ends, or a file",
    "bad end line": "the lines of an ssl.*.pem property begin or end with blanks: remove these",
    "ssl.key.location failed": "ssl.key.password does not decrypt the key of ssl.key.location, or it is damaged",
    "ssl.key.pem failed": "ssl.key.password does not decrypt the key of ssl.key.pem, or it is damaged",
    "mac verify failure": "ssl.keystore.password does not open the key store of ssl.keystore.location",
    "ssl.keystore.location PKCS#12": "ssl.keystore.location: the file is no PKCS12 key store",
    "No provider for SASL mechanism": (
        "sasl.mechanism: the installed client library was built without it; choose PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"
        " or OAUTHBEARER"
    ),
}
# No refusals, although the client's code says so: a connection that was lost within a login, and a token endpoint that
# is down, in the words of libcurl.
_LOST = re.compile(
    r"failed: Local: (?!Authentication|SSL)|OAUTHBEARER token.*(connect to|resolve host|timed? ?out|HTTP.*\b5\d\d\b)",
    re.IGNORECASE,
)


class ClientLog:
    """Takes the client library's log lines as DEBUG, secrets replaced.

    It repeats each failed connection attempt and warns of properties meant for another kind of client (one mapping
    serves them all). We raise or log once each problem that a user must know. Any thread of the library may call it.
    """

    def __init__(
        self, without_secrets: Callable[[str], str], listener: Callable[[str, str], None] | None = None
    ) -> None:
        self._without_secrets = without_secrets
        self._listener = listener

    def with_listener(self, listener: Callable[[str, str], None] | None) -> ClientLog:
        """Return a log that also calls ``listener`` with the facility and the text of each line."""
        return ClientLog(self._without_secrets, listener)

    def log(self, _level: int, message: str, *args: object) -> None:
        """Log one line; called by the client library."""
        if not args or args[0] == "CONFWARN":
            return
        if self._listener is not None:
            self._listener(str(args[0]), message % args)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", self._without_secrets(message % args))


@contextmanager
def kafka_errors(
    action: str,
    bootstrap: str,
    client_error: Callable[[], KafkaError | None] = lambda: None,
    has_answered: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Raise Unreachable, ConfigError or CompactoryError in place of the client's error, which stays the cause.

    ``action`` completes "could not …". ``client_error`` returns the client's last error as a whole (a refused
    connection, a failed login), which says why a request timed out. ``has_answered`` returns True if the cluster has
    taken these properties before: a login or certificate that is refused then is an outage, perhaps of one broker.
    """
    try:
        yield
    except KafkaException as error:
        code, cause = code_of(error), client_error()
        reason = error.args[0].str() if error.args else str(error)
        detail = reason if cause is None else cause.str()
        is_refused = code in _REFUSED or (cause is not None and is_refusal(cause))
        if not is_refused and code not in PASSING:
            raise CompactoryError(f"could not {action} on Kafka at {bootstrap}: {reason}") from error
        if is_refused:
            message = f"Kafka at {bootstrap} refused to {action}: {detail}; {_remedy(detail)}"
        else:
            remedy = _remedy(detail, "check bootstrap.servers, security.protocol and the network")
            message = f"Kafka at {bootstrap} was not reached to {action}: {detail}; {remedy}"
        if code in _RIGHTS or (is_refused and not has_answered()):
            raise ConfigError(message) from error
        raise Unreachable("Kafka", message) from error


def event_kind(error: KafkaError) -> Literal["end", "lost", "cut", "refused", "passing"]:
    """Sort an error event of a consumer.

    ``end``: the end of a partition, at the event's offset. ``lost``: the position is not in the log any more (or not
    yet), which a reader must never hide. ``cut``: the same, and its leader epoch shows that the log was cut off
    before it, however long it is now (KIP-320). ``refused``: no right to read. ``passing``: the client recovers itself,
    a refused login included, or it is about the consumer group, which the client looks for although nothing of ours
    belongs to one.
    """
    code = error.code()
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return "passing"
    if code == KafkaError._PARTITION_EOF:
        return "end"
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        return "cut" if "truncation" in error.str() else "lost"
    return "refused" if code in _RIGHTS else "passing"


def is_refusal(error: KafkaError) -> bool:
    """Return True if the broker refused the client, so that trying again with these properties is no use."""
    text = error.str()
    if "certificate verify failed" in text or any(alert in text for alert in _ALERTS):
        return True
    return error.code() in _REFUSED and not _LOST.search(text)


def code_of(error: KafkaException) -> int:
    """Return the client's code of an error, 0 when it has none."""
    return int(error.args[0].code()) if error.args and isinstance(error.args[0], KafkaError) else 0


def check(properties: Mapping[str, Any], known_problems: Iterable[str] = ()) -> None:
    """Check the properties by themselves and by the client library.

    Raises ConfigError with ``known_problems`` and all others. Opens no connection, calls no callable of the user.
    """
    problems = [*known_problems, *java_property_problems(properties)]
    refused_names = {problem.partition(" ")[0] for problem in problems}
    remaining = {name: value for name, value in properties.items() if name not in refused_names}
    plain = {name: value for name, value in remaining.items() if not callable(value) and name not in _UNCHECKED}
    refusal = _library_refusal(plain)
    wrong = dict(property_problems(plain)) if refusal is not None else {}
    problems += wrong.values()
    problems += credential_problems({name: value for name, value in remaining.items() if name not in wrong})
    if refusal is not None and not problems:
        problems.append(_creation_problem(refusal, properties))
    if problems:
        raise ConfigError(problems)


def property_problems(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the library's complaint about each property by itself, with the property's name."""
    for name, value in properties.items():
        problem = _library_refusal({name: value}, alone=name.startswith(("sasl.", "ssl.", "security.")))
        if problem is not None:
            similar = nearest_property(name) if "No such configuration" in problem else None
            hint = f"; did you mean {similar!r}?" if similar else ""
            yield name, f"Kafka property {name!r}: {without_secrets(problem, properties)}{hint}"


def _creation_problem(text: str, properties: Mapping[str, Any]) -> str:
    reason = without_secrets(text, properties).removeprefix("Failed to create admin client: ")
    problem = next((problem for mark, problem in _CREATION.items() if mark in text), None)
    return f"{problem} ({reason})" if problem else f"Kafka properties: {reason}"


def _library_refusal(properties: Mapping[str, Any], *, alone: bool = False) -> str | None:
    """Return why the library refuses the properties; with ``alone`` leave out what depends on other properties."""
    try:
        AdminClient(dict(properties), logger=_SILENT)
    except KafkaException as error:
        text = error.args[0].str().strip() if error.args else str(error)
        return None if alone and text.startswith("Failed to create") else text
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def _remedy(detail: str, otherwise: str = "check security.protocol, sasl.*, ssl.* and the ACLs") -> str:
    if any(alert in detail for alert in _ALERTS):
        return _CERTIFICATE
    return next((remedy for mark, remedy in _REMEDIES.items() if mark in detail), otherwise)
