"""Whoever comes from Kafka's Java client is told what each property is called here, and how to convert a key store."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from compactory import ConfigError, GlobalStore
from compactory.kafka.client import Kafka
from tests.security.secured_kafka import KEY_PASSWORD, SecuredKafka

TLS = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL"}
SECRET = "geheim-9"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("ssl.truststore.location", "/etc/kafka/trust.jks", "use ssl.ca.location, a PEM file; convert with: keytool"),
        ("ssl.truststore.password", SECRET, "holds nothing secret"),
        ("ssl.truststore.type", "JKS", "ssl.ca.location is always PEM"),
        ("ssl.truststore.certificates", SECRET, "goes into ssl.ca.pem"),
        ("ssl.keystore.type", "JKS", "keytool -importkeystore"),
        ("ssl.keystore.type", "PKCS12", "remove it: ssl.keystore.location is always PKCS12"),
        ("ssl.keystore.type", "PEM", "use ssl.certificate.location and ssl.key.location"),
        ("ssl.keystore.key", SECRET, "goes into ssl.key.pem"),
        ("ssl.keystore.certificate.chain", SECRET, "goes into ssl.certificate.pem"),
        ("ssl.enabled.protocols", "TLSv1.3", "remove it"),
        (
            "sasl.jaas.config",
            f'x.PlainLoginModule required password="{SECRET}";',
            "sasl.mechanism=PLAIN, sasl.username",
        ),
        ("sasl.jaas.config", f'x.ScramLoginModule required password="{SECRET}";', "sasl.mechanism=SCRAM-SHA-256 or"),
        ("sasl.jaas.config", f"x.OAuthBearerLoginModule {SECRET};", "sasl.oauthbearer.method=oidc"),
        ("sasl.login.callback.handler.class", "x.y.Handler", "callable as oauth_cb"),
        ("sasl.client.callback.handler.class", "x.y.Handler", "callable as oauth_cb"),
        ("security.providers", "x", "remove it"),
    ],
)
def test_a_name_is_translated(name: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Kafka(TLS | {name: value})
    [problem] = caught.value.problems
    assert problem.startswith(f"{name} is a property of Kafka's Java client: ")
    assert told in problem
    assert SECRET not in problem


@pytest.fixture
def stores(secured_kafka: SecuredKafka, tmp_path: Path) -> Path:
    """A folder with the stores of a Java client: ``truststore.jks`` and ``keystore.jks``."""
    source = ["-srckeystore", str(secured_kafka.keystore()), "-srcstoretype", "PKCS12", "-srcstorepass", KEY_PASSWORD]
    _keytool(tmp_path, "-importkeystore", *source, *_jks("-dest", "keystore.jks"), "-deststoretype", "JKS")
    _keytool(tmp_path, "-importcert", "-noprompt", "-alias", "ca", "-file", str(secured_kafka.ca),
             "-storetype", "JKS", "-keystore", "truststore.jks", "-storepass", KEY_PASSWORD)  # fmt: skip
    return tmp_path


def _keytool(folder: Path, *arguments: str) -> None:
    subprocess.run(["keytool", *arguments], cwd=folder, check=True, capture_output=True)


def _jks(side: str, name: str) -> list[str]:
    return [f"{side}keystore", name, f"{side}storepass", KEY_PASSWORD]


def _advised(properties: dict[str, str], folder: Path) -> None:
    """Run the commands that the refusal names, giving the password where they would ask for it."""
    with pytest.raises(ConfigError) as caught:
        Kafka(properties)
    [command] = re.findall(r"convert with: (.*?); then", str(caught.value))
    command = command.replace("-list -rfc", f"-list -rfc -storepass {KEY_PASSWORD}")
    command = command.replace(
        "-importkeystore", f"-importkeystore -srcstorepass {KEY_PASSWORD} -deststorepass {KEY_PASSWORD}"
    )
    command = command.replace(
        "openssl pkcs12", f"openssl pkcs12 -passin pass:{KEY_PASSWORD} -passout pass:{KEY_PASSWORD}"
    )
    subprocess.run(command, shell=True, cwd=folder, check=True, capture_output=True)


@pytest.mark.proof
def test_java_stores_are_converted_as_advised(
    secured_kafka: SecuredKafka, stores: Path, unique: Callable[[str], str]
) -> None:
    topic = secured_kafka.topic(unique("converted"))
    _advised(TLS | {"ssl.truststore.location": str(stores / "truststore.jks")}, stores)
    _advised(TLS | {"ssl.keystore.location": str(stores / "keystore.jks")}, stores)
    properties = secured_kafka.client(
        "MTLS",
        ssl_ca_location=str(stores / "ca.pem"),
        ssl_keystore_location=str(stores / "keystore.p12"),
        ssl_keystore_password=KEY_PASSWORD,
    )
    with GlobalStore(properties, [topic]) as store:
        assert store[topic]["1"] == {"n": 1}


@pytest.mark.proof
def test_java_stores_become_pem_as_advised(
    secured_kafka: SecuredKafka, stores: Path, unique: Callable[[str], str]
) -> None:
    topic = secured_kafka.topic(unique("converted"))
    keystore = str(stores / "keystore.jks")
    _advised(TLS | {"ssl.ca.location": str(stores / "truststore.jks")}, stores)
    pair = {"ssl.certificate.location": keystore, "ssl.key.location": str(secured_kafka.key)}
    _advised(TLS | pair, stores)
    (stores / "keystore.p12").unlink()
    pair = {"ssl.certificate.location": str(secured_kafka.certificate), "ssl.key.location": keystore}
    _advised(TLS | pair, stores)
    properties = secured_kafka.client(
        "MTLS",
        ssl_ca_location=str(stores / "ca.pem"),
        ssl_certificate_location=str(stores / "client.pem"),
        ssl_key_location=str(stores / "client.key"),
        ssl_key_password=KEY_PASSWORD,
    )
    with GlobalStore(properties, [topic]) as store:
        assert store[topic]["1"] == {"n": 1}
