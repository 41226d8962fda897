"""``producer.override.*``: the Java producer's property names → librdkafka's. Pure.

Sources: ``ProducerConfig``, ``CommonClientConfigs`` and ``SslConfigs`` of Apache Kafka 4.1; CONFIGURATION.md of
librdkafka 2.x. Names that librdkafka has itself pass as they are; it refuses unknown ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["MOOT", "REFUSED", "RENAMED", "ProducerProperties", "read_producer"]

RENAMED = {
    "delivery.timeout.ms": "message.timeout.ms",
    "max.request.size": "message.max.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
    "compression.gzip.level": "compression.level",
    "compression.lz4.level": "compression.level",
    "compression.zstd.level": "compression.level",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}

MOOT = {
    "max.block.ms": "the source waits for Kafka by itself",
    "metadata.max.idle.ms": "librdkafka forgets topics by itself",
    "partitioner.ignore.keys": "keys decide the partition",
    "partitioner.adaptive.partitioning.enable": "keys decide the partition",
    "partitioner.availability.timeout.ms": "keys decide the partition",
    "metric.reporters": "metrics are those of --listen",
    "metrics.num.samples": "metrics are those of --listen",
    "metrics.recording.level": "metrics are those of --listen",
    "metrics.sample.window.ms": "metrics are those of --listen",
    "auto.include.jmx.reporter": "there is no JMX",
    "enable.metrics.push": "metrics are those of --listen",
    "ssl.enabled.protocols": "OpenSSL chooses the newest that both sides have",
    "ssl.protocol": "OpenSSL chooses the newest that both sides have",
    "ssl.keymanager.algorithm": "there is no Java",
    "ssl.trustmanager.algorithm": "there is no Java",
    "ssl.secure.random.implementation": "there is no Java",
    "security.providers": "there is no Java",
    "transaction.timeout.ms": "10 s, so that an abandoned transaction does not block readers for longer",
}

REFUSED = {
    "transactional.id": "is made of the connector's name; leave it out",
    "transaction.two.phase.commit.enable": "the source commits by itself; leave it out",
    "key.serializer": "records are written by key.converter; leave it out",
    "value.serializer": "records are written by value.converter; leave it out",
    "interceptor.classes": "Java classes can't be loaded; leave it out",
    "sasl.login.class": "Java classes can't be loaded; leave it out",
    "sasl.login.callback.handler.class": "Java classes can't be loaded; give sasl.oauthbearer.* of librdkafka",
    "sasl.client.callback.handler.class": "Java classes can't be loaded; leave it out",
    "ssl.engine.factory.class": "Java classes can't be loaded; leave it out",
    "sasl.jaas.config": "JAAS is Java's; give sasl.username and sasl.password, or sasl.oauthbearer.*, of librdkafka",
    "ssl.truststore.location": "a trust store is Java's; give ssl.ca.location of librdkafka, a PEM file",
    "ssl.truststore.type": "a trust store is Java's; give ssl.ca.location of librdkafka, a PEM file",
    "ssl.truststore.password": "a trust store is Java's; give ssl.ca.location of librdkafka, which needs no password",
    "ssl.keystore.type": "leave it out: ssl.keystore.location of librdkafka is a PKCS12 file; of PEM files give"
    " ssl.certificate.location and ssl.key.location",
}

_PARTITIONERS = {
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner",
    "",
}
_PARTITIONING = "keys are spread as the Java producer spreads them"


@dataclass(slots=True)
class ProducerProperties:
    """Properties by librdkafka's names, and problems and notes about the others."""

    properties: dict[str, str] = field(default_factory=dict, repr=False)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_producer(written: Mapping[str, str], *, transactions: bool) -> ProducerProperties:
    """Return the properties below ``producer.override.`` (prefix removed). No message shows a secret."""
    producer = ProducerProperties()
    for name, value in written.items():
        key = f"producer.override.{name}"
        if name in REFUSED:
            producer.problems.append(f"{key}: {REFUSED[name]}")
        elif name in MOOT or name.startswith("metrics.context."):
            producer.notes.append(f"{key}: has no effect: {MOOT.get(name, 'there is no Java')}")
        elif name == "buffer.memory":
            _set_buffer(producer, key, value)
        elif name == "partitioner.class" and value in _PARTITIONERS:
            producer.notes.append(f"{key}: has no effect: {_PARTITIONING}")
        elif name == "partitioner.class":
            producer.problems.append(f"{key}: Java classes can't be loaded; {_PARTITIONING}")
        elif name == "ssl.endpoint.identification.algorithm":
            producer.properties[name] = value.strip() or "none"
        else:
            producer.properties[RENAMED.get(name, name)] = value
    _check(producer, transactions=transactions)
    return producer


def _set_buffer(producer: ProducerProperties, key: str, value: str) -> None:
    if value.isdigit() and int(value) >= 1024:
        producer.properties["queue.buffering.max.kbytes"] = str(int(value) // 1024)
    else:
        producer.problems.append(f"{key}: must be a number of bytes of at least 1024, not {value!r}")


def _check(producer: ProducerProperties, *, transactions: bool) -> None:
    properties = producer.properties
    if transactions and properties.get("enable.idempotence", "true").lower() != "true":
        producer.problems.append("producer.override.enable.idempotence: transactions need true; leave it out")
    if properties.get("acks", "all") not in {"all", "-1"}:
        producer.problems.append("producer.override.acks: must be all, or a committed row can be lost; leave it out")
    if transactions and properties.pop("message.timeout.ms", None) is not None:
        producer.notes.append(
            "producer.override.delivery.timeout.ms: has no effect: a transaction ends within 10 s, and what did not"
            " arrive by then is sent again"
        )
