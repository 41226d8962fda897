"""A store works over every kind of TLS and login that Kafka has; commands and the source by compactory.toml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from compactory import Directory, DirectoryWriter, GlobalStore
from compactory.kafka.client import Kafka
from compactory_sql import read
from tests.cli.conftest import Article, Shell
from tests.security.secured_kafka import KEY_PASSWORD, PASSWORD, SecuredKafka, logged, toml
from tests.store.topics import eventually

Properties = dict[str, Any]


def _encrypted(kafka: SecuredKafka) -> Properties:
    return kafka.certified(ssl_key_location=str(kafka.encrypted_key), ssl_key_password=KEY_PASSWORD)


def _inline(kafka: SecuredKafka) -> Properties:
    own = {
        "ssl.ca.pem": kafka.authority.pem,
        "ssl.certificate.pem": kafka.client_certificate.certificate_pem,
        "ssl.key.pem": kafka.client_certificate.key_pem(KEY_PASSWORD),
        "ssl.key.password": KEY_PASSWORD,
    }
    return {name: value for name, value in kafka.client("MTLS").items() if name != "ssl.ca.location"} | own


def _carriage_returns(kafka: SecuredKafka) -> Properties:
    inline = _inline(kafka)
    return {name: value.replace("\n", "\r\n") if name.endswith(".pem") else value for name, value in inline.items()}


def _keystore(kafka: SecuredKafka) -> Properties:
    own = {"ssl_keystore_location": str(kafka.keystore()), "ssl_keystore_password": KEY_PASSWORD}
    return kafka.client("MTLS", **own)


WAYS: dict[str, Callable[[SecuredKafka], Properties]] = {
    "TLS": lambda kafka: kafka.client(),
    "TLS, two authorities": lambda kafka: kafka.client(ssl_ca_location=str(kafka.both_authorities())),
    "mutual TLS": lambda kafka: kafka.certified(),
    "mutual TLS, encrypted key": _encrypted,
    "mutual TLS, PEM in properties": _inline,
    "mutual TLS, PEM with carriage returns": _carriage_returns,
    "mutual TLS, PKCS12": _keystore,
    "PLAIN": lambda kafka: kafka.login("PLAIN"),
    "SCRAM-SHA-256": lambda kafka: kafka.login("SCRAM-SHA-256"),
    "SCRAM-SHA-512": lambda kafka: kafka.login("SCRAM-SHA-512"),
    "OAUTHBEARER by OIDC": lambda kafka: kafka.oidc(),
    "OAUTHBEARER by a callable": lambda kafka: kafka.by_callable(),
    "OAUTHBEARER, unsecured": lambda kafka: kafka.unsecured(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_store_loads_and_follows(secured_kafka: SecuredKafka, way: str, unique: Callable[[str], str]) -> None:
    """And nothing that it says, not even with all of the client's debug lines, holds a secret."""
    topic = secured_kafka.topic(unique("access"))
    properties = WAYS[way](secured_kafka) | {"debug": "all"}
    with logged() as lines, GlobalStore(properties, [topic]) as store:
        assert dict(store[topic]) == {"1": {"n": 1}}
        secured_kafka.put(topic, "2", 2)
        store.barrier(10)
        assert store[topic]["2"] == {"n": 2}
        assert store.end_offsets()
        shown = [repr(store), repr(Kafka(properties)), str(store.topics())]
    assert "rdkafka" in lines.getvalue()
    assert secured_kafka.leaks(lines.getvalue(), *shown) == []


@pytest.mark.parametrize("way", ["mutual TLS", "SCRAM-SHA-512", "OAUTHBEARER by OIDC"])
def test_a_writer_writes(secured_kafka: SecuredKafka, way: str, unique: Callable[[str], str]) -> None:
    topic = secured_kafka.topic(unique("written"))
    properties = WAYS[way](secured_kafka)
    with DirectoryWriter(properties, Directory(topic, writable=True)) as writer:
        token = writer.put("2", {"n": 2})
    with GlobalStore(properties, [topic]) as store:
        store.wait_for(token, timeout=10)
        assert store[topic]["2"] == {"n": 2}


@pytest.mark.parametrize("way", ["by OIDC", pytest.param("by a callable", marks=pytest.mark.proof)])
def test_a_store_outlives_its_tokens(
    secured_kafka: SecuredKafka, way: str, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ends a connection with its token; the library gets another one before."""
    monkeypatch.setattr(secured_kafka.identity, "lifetime", 4)
    topic = secured_kafka.topic(unique("tokens"))
    with GlobalStore(WAYS[f"OAUTHBEARER {way}"](secured_kafka), [topic]) as store:
        first = len(secured_kafka.identity.issued)
        eventually(lambda: len(secured_kafka.identity.issued) >= first + 2)
        secured_kafka.put(topic, "2", 2)
        store.barrier(10)
        assert store[topic]["2"] == {"n": 2}


def test_making_a_kafka_calls_nobody(secured_kafka: SecuredKafka) -> None:
    """It may happen before a fork, and without a network."""
    calls: list[str | None] = []
    Kafka(secured_kafka.by_callable() | {"oauth_cb": calls.append})
    assert calls == []


def test_a_command_logs_in_by_file_and_environment(
    secured_kafka: SecuredKafka, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    topic = secured_kafka.topic(unique("shell"))
    shell = Shell(tmp_path)
    properties = secured_kafka.login("SCRAM-SHA-512")
    del properties["sasl.password"]
    shell.write("compactory.toml", toml(properties))
    secret = shell.write("password", PASSWORD + "\n")
    done = shell("get", topic, "1", "--json", COMPACTORY_KAFKA_SASL_PASSWORD_FILE=str(secret))
    assert done.code == 0, done.err
    assert done.json["value"] == {"n": 1}


def test_the_environment_alone_is_enough(
    secured_kafka: SecuredKafka, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    topic = secured_kafka.topic(unique("shell"))
    variables = {
        "COMPACTORY_KAFKA": secured_kafka.server.listener("MTLS"),
        "COMPACTORY_KAFKA_SECURITY_PROTOCOL": "SSL",
        "COMPACTORY_KAFKA_SSL_CA_PEM_FILE": str(secured_kafka.ca),
        "COMPACTORY_KAFKA_SSL_CERTIFICATE_PEM_FILE": str(secured_kafka.certificate),
        "COMPACTORY_KAFKA_SSL_KEY_PEM_FILE": str(secured_kafka.encrypted_key),
        "COMPACTORY_KAFKA_SSL_KEY_PASSWORD": KEY_PASSWORD,
    }
    done = Shell(tmp_path)("get", topic, "1", "--json", **variables)
    assert done.code == 0, done.err


def test_a_source_publishes_by_a_login(
    secured_kafka: SecuredKafka, database: str, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(read("templates/terminal_acquirer.sql").encode())
        connection.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'A1')")
    shell = Shell(tmp_path)
    article = Article(shell, database, unique("p") + "-")
    properties = secured_kafka.login("SCRAM-SHA-256")
    del properties["sasl.password"]
    shell.write("compactory.toml", toml(properties))
    secret = str(shell.write("password", PASSWORD))
    done = shell("source", "run", "--once", *article.arguments, COMPACTORY_KAFKA_SASL_PASSWORD_FILE=secret)
    assert done.code == 0, done.err
    with GlobalStore(secured_kafka.certified(), [article.topic]) as store:
        assert store[article.topic]["1"]["acquirerId"] == "A1"
