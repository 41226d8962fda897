"""The Java producer's properties: every one of them is translated, said to have no effect, or refused."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from compactory_connectors.source.config.producer_properties import ProducerProperties, read_producer

JAVA = """
acks batch.size bootstrap.servers buffer.memory client.dns.lookup client.id compression.gzip.level
compression.lz4.level compression.type compression.zstd.level connections.max.idle.ms delivery.timeout.ms
enable.idempotence interceptor.classes key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
max.request.size metadata.max.age.ms metadata.max.idle.ms metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms partitioner.adaptive.partitioning.enable
partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
sasl.jaas.config sasl.kerberos.service.name sasl.mechanism security.protocol security.providers send.buffer.bytes
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keystore.certificate.chain
ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol
ssl.secure.random.implementation ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
ssl.truststore.type transaction.timeout.ms transactional.id value.serializer
""".split()  # noqa: SIM905 - a table
"""Of ``ProducerConfig``, ``CommonClientConfigs``, ``SslConfigs`` and ``SaslConfigs`` of Apache Kafka 4.1."""

VALUES = {"acks": "all", "enable.idempotence": "true", "compression.type": "lz4", "buffer.memory": "33554432",
          "client.dns.lookup": "use_all_dns_ips", "security.protocol": "SSL", "sasl.mechanism": "PLAIN",
          "bootstrap.servers": "h:1", "max.in.flight.requests.per.connection": "5", "compression.zstd.level": "3",
          "compression.gzip.level": "3", "compression.lz4.level": "3", "max.request.size": "2000000",
          "ssl.cipher.suites": "ECDHE-RSA-AES128-GCM-SHA256", "client.id": "c",
          "request.timeout.ms": "30000",
          "ssl.endpoint.identification.algorithm": "", "delivery.timeout.ms": "120000",
          "partitioner.class": "org.example.Mine"}  # fmt: skip


def one(name: str, *, transactions: bool = False, **overrides: str) -> ProducerProperties:
    return read_producer({name: VALUES.get(name, "1000"), **overrides}, transactions=transactions)


@pytest.mark.parametrize("name", JAVA)
def test_every_property_of_the_java_producer_is_accounted_for(name: str) -> None:
    """None is ignored in silence, and what is translated is a name that librdkafka has."""
    producer = one(name)
    assert producer.properties or producer.problems or producer.notes
    for translated, value in producer.properties.items():
        if not translated.startswith(("ssl.", "sasl.")):
            Producer({"bootstrap.servers": "h:1", translated: value})


JAVAS_OWN = {
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.type": "ssl.ca.location",
    "ssl.truststore.password": "ssl.ca.location",
    "ssl.keystore.type": "ssl.keystore.location",
}


@pytest.mark.parametrize("name", JAVAS_OWN)
def test_logins_and_stores_of_java_are_refused_with_librdkafkas_name(name: str) -> None:
    read = read_producer({name: "s3cret"}, transactions=True)
    assert read.properties == {}
    (problem,) = read.problems
    assert problem.startswith(f"producer.override.{name}: ")
    assert JAVAS_OWN[name] in problem
    assert "s3cret" not in problem


def test_a_key_store_in_pkcs12_is_librdkafkas_too() -> None:
    written = {"ssl.keystore.location": "/k.p12", "ssl.keystore.password": "x"}
    assert read_producer(written, transactions=True).properties == written


def test_units_and_limits() -> None:
    assert one("buffer.memory").properties == {"queue.buffering.max.kbytes": "32768"}
    assert one("delivery.timeout.ms").properties == {"message.timeout.ms": "120000"}
    within = one("delivery.timeout.ms", transactions=True)
    assert (within.properties, len(within.notes)) == ({}, 1)
    assert one("ssl.endpoint.identification.algorithm").properties == {"ssl.endpoint.identification.algorithm": "none"}
