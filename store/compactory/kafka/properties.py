"""Kafka client properties as a user gives them: normalised, checked and printable without secrets.

Pure text work; `compactory.kafka.client` asks the client library itself whether a value is acceptable. Names are
those of librdkafka 2.x (its CONFIGURATION.md), which differ from the Java client's (``ssl.ca.location``, not a trust
store).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from compactory.errors import ConfigError

__all__ = [
    "OWNED",
    "flatten",
    "java_property_problems",
    "nearest_property",
    "normalise",
    "printable",
    "without_secrets",
]

# Properties that the store sets itself: with another value it would be silently wrong, so another one is refused.
OWNED = {"isolation.level": "read_committed", "auto.offset.reset": "error", "enable.auto.commit": "false"}

_SECRET = re.compile(
    r"password|secret|passphrase|jaas|token(?!\.endpoint\.url)|key\.pem|keystore\.pem|oauthbearer\.config|assertion\..*pem",
    re.IGNORECASE,
)
_ACCOUNT = re.compile(r"(?<=://)[^/@\s]+@")  # of a URL such as that of a token endpoint or a proxy
_HIDDEN = "[hidden]"

_JAVA_NAMES = {  # property of Kafka's Java client → those of librdkafka in its place
    "ssl.truststore.location": "ssl.ca.location (a PEM file)",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.truststore.password": "ssl.ca.location, which needs none",
    "ssl.truststore.type": "ssl.ca.location, which is PEM",
    "ssl.keystore.type": "ssl.keystore.location, which is PKCS12",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "sasl.jaas.config": "sasl.mechanism, sasl.username and sasl.password, or sasl.oauthbearer.*",
    "sasl.login.callback.handler.class": "sasl.oauthbearer.method=oidc, or a callable as oauth_cb",
    "sasl.client.callback.handler.class": "sasl.oauthbearer.method=oidc, or a callable as oauth_cb",
}

_OFTEN_SET = tuple(  # for suggestions only: the library itself decides what is valid
    """
bootstrap.servers broker.address.family client.dns.lookup client.id client.rack compression.level compression.type
connections.max.idle.ms debug enable.ssl.certificate.verification fetch.max.bytes fetch.message.max.bytes
fetch.min.bytes fetch.wait.max.ms group.id group.instance.id https.ca.location https.ca.pem isolation.level linger.ms
log.connection.close log_level message.max.bytes message.timeout.ms queue.buffering.max.kbytes
queue.buffering.max.messages queued.max.messages.kbytes queued.min.messages reconnect.backoff.max.ms
reconnect.backoff.ms request.timeout.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.principal
sasl.kerberos.service.name sasl.mechanism sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
sasl.oauthbearer.config sasl.oauthbearer.method sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url
sasl.password sasl.username security.protocol session.timeout.ms socket.keepalive.enable socket.timeout.ms
ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location
ssl.keystore.password statistics.interval.ms topic.metadata.refresh.interval.ms transaction.timeout.ms
transactional.id
""".split()  # noqa: SIM905 (a name a line is no easier to read)
)


def normalise(kafka: str | Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return client properties from a bootstrap string or a mapping, and their problems.

    Nested mappings are joined by dots. Callables (``oauth_cb``, ``error_cb``, …) stay as they are. Raises ConfigError
    for what is neither text nor a mapping.
    """
    if not isinstance(kafka, str | Mapping):
        raise ConfigError(f"kafka must be host:port[,host:port…] or a mapping of properties, not {kafka!r}")
    if isinstance(kafka, str):
        properties: dict[str, Any] = {"bootstrap.servers": kafka}
    else:
        properties = dict(flatten(kafka))
    servers = properties.get("bootstrap.servers", properties.pop("metadata.broker.list", None))
    if isinstance(servers, (list, tuple)):
        servers = ",".join(str(server) for server in servers)
    if servers is not None:
        properties["bootstrap.servers"] = servers
    return properties, [*_server_problems(servers), *_owned_problems(properties)]


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``("a.b", value)`` for ``{"a": {"b": value}}``: TOML nests dotted keys, Kafka wants them whole."""
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def java_property_problems(properties: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each property that only Kafka's Java client has; no value is quoted."""
    for name, replacement in _JAVA_NAMES.items():
        if name in properties:
            yield f"{name} is a property of Kafka's Java client: use {replacement}"


def nearest_property(name: str) -> str | None:
    """Return the librdkafka property that is spelt most like ``name``, if one is near."""
    matches = get_close_matches(name.replace("_", "."), _OFTEN_SET, n=1, cutoff=0.75)
    return matches[0] if matches else None


def printable(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties with every secret replaced by ``[hidden]``; for logs, errors and reprs.

    Callables as well: the repr of a ``partial`` or a bound method shows what it was made with.
    """
    return {name: _shown(name, value) for name, value in properties.items()}


def without_secrets(text: str, properties: Mapping[str, Any]) -> str:
    """Return ``text`` with every secret value of ``properties``, and accounts in URLs, replaced by ``[hidden]``."""
    for name, value in properties.items():
        if _SECRET.search(name) and str(value):
            text = text.replace(str(value), _HIDDEN)
    return _ACCOUNT.sub(_HIDDEN + "@", text)


def _shown(name: str, value: Any) -> Any:
    if callable(value) or _SECRET.search(name):
        return _HIDDEN
    return _ACCOUNT.sub(_HIDDEN + "@", value) if isinstance(value, str) else value


def _server_problems(servers: Any) -> Iterator[str]:
    if not isinstance(servers, str) or not servers.strip():
        yield "bootstrap.servers is missing: give host:port[,host:port…] of the Kafka cluster"
        return
    for server in servers.split(","):
        host, _, port = server.strip().rpartition("://")[2].rpartition(":")
        if not server.strip() or "/" in server.rpartition("://")[2]:
            yield f"bootstrap.servers: {server.strip()!r} is not host:port"
        elif server.strip().lower().startswith(("http://", "https://", "kafka://", "postgres")):
            yield f"bootstrap.servers: {server.strip()!r} is a URL; give host:port"
        elif host and not (port.isdigit() and 0 < int(port) < 65536) and not port.endswith("]"):
            yield f"bootstrap.servers: {server.strip()!r} has no port between 1 and 65535"


def _owned_problems(properties: Mapping[str, Any]) -> Iterator[str]:
    for name, needed in OWNED.items():
        value = str(properties.get(name, needed)).lower()
        if value != needed:
            yield f"{name}={value} is not for you to set: the store needs {needed}; remove the property"
