"""Properties of Kafka's Java client are refused by name, with librdkafka's name in their place."""

from __future__ import annotations

import pytest

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka

TLS = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL"}
SECRET = "geheim-9"


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("ssl.truststore.location", "use ssl.ca.location"),
        ("ssl.truststore.password", "use ssl.ca.location"),
        ("ssl.truststore.certificates", "use ssl.ca.pem"),
        ("ssl.keystore.type", "PKCS12"),
        ("ssl.keystore.key", "use ssl.key.pem"),
        ("ssl.keystore.certificate.chain", "use ssl.certificate.pem"),
        ("sasl.jaas.config", "use sasl.mechanism, sasl.username and sasl.password"),
        ("sasl.login.callback.handler.class", "callable as oauth_cb"),
    ],
)
def test_a_name_of_java_is_refused_with_librdkafkas(name: str, replacement: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Kafka(TLS | {name: SECRET})
    [problem] = caught.value.problems
    assert problem.startswith(f"{name} is a property of Kafka's Java client: ")
    assert replacement in problem
    assert SECRET not in problem
