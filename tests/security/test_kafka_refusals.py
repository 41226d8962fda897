"""What does not fit is told within seconds, with the property that it is about and what to do."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compactory import CompactoryError, ConfigError, GlobalStore, Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.publisher import Publisher
from tests.cli.conftest import Outcome, Shell
from tests.security.identity_provider import unsecured_token
from tests.security.secured_kafka import USER, SecuredKafka, everything, logged, toml

Properties = dict[str, Any]
BOUND = 15.0  # seconds; two or three where the machine is not busy, against a stall_timeout of 30


@dataclass(frozen=True)
class Case:
    """What somebody set, and what they are told."""

    properties: Callable[[SecuredKafka], Properties]
    told: tuple[str, ...]
    kind: type[CompactoryError] = ConfigError


def _elsewhere(kafka: SecuredKafka, listener: str, properties: Properties) -> Properties:
    return properties | {"bootstrap.servers": kafka.server.listener(listener)}


def _in_the_clear(kafka: SecuredKafka, properties: Properties) -> Properties:
    return properties | {"bootstrap.servers": kafka.server.address}


def _foreign_certificate(kafka: SecuredKafka) -> Properties:
    foreign = kafka.foreign.sign("stranger")
    text = {"ssl.certificate.pem": foreign.certificate_pem, "ssl.key.pem": foreign.key_pem()}
    return kafka.client("MTLS") | text


def _expired_certificate(kafka: SecuredKafka) -> Properties:
    late = kafka.authority.sign("late", days=-1)
    return kafka.client("MTLS") | {"ssl.certificate.pem": late.certificate_pem, "ssl.key.pem": late.key_pem()}


def _without(properties: Properties, name: str) -> Properties:
    return {key: value for key, value in properties.items() if key != name}


CASES = {
    "foreign authority": Case(
        lambda kafka: kafka.client(ssl_ca_location=str(kafka.foreign_ca)),
        ("set ssl.ca.location",),
    ),
    "no authority": Case(
        lambda kafka: _without(kafka.client(), "ssl.ca.location"),
        ("set ssl.ca.location",),
    ),
    "expired server certificate": Case(lambda kafka: kafka.client("EXPIRED"), ("set ssl.ca.location",)),
    "another host's certificate": Case(
        lambda kafka: kafka.client("ELSEWHERE"), ("use a host name in bootstrap.servers that the certificate is for",)
    ),
    "login where there is none": Case(
        lambda kafka: _elsewhere(kafka, "TLS", kafka.login("PLAIN")),
        ("the listener takes no login", "security.protocol"),
    ),
    "wrong password, PLAIN": Case(
        lambda kafka: kafka.login("PLAIN", sasl_password="wrong"), ("check sasl.username and sasl.password",)
    ),
    "wrong password, SCRAM": Case(
        lambda kafka: kafka.login("SCRAM-SHA-256", sasl_password="wrong"),
        ("check sasl.username and sasl.password", "for this very sasl.mechanism"),
    ),
    "wrong user": Case(
        lambda kafka: kafka.login("SCRAM-SHA-512", sasl_username="nobody"), ("check sasl.username and sasl.password",)
    ),
    "mechanism that is off": Case(
        lambda kafka: _elsewhere(kafka, "OIDC", kafka.login("SCRAM-SHA-512")),
        ("supported mechanisms: OAUTHBEARER", "set sasl.mechanism"),
    ),
    "no client certificate": Case(
        lambda kafka: kafka.client("MTLS"), ("wants a client certificate", "set ssl.certificate.location and ssl.key")
    ),
    "foreign client certificate": Case(_foreign_certificate, ("wants a client certificate that it trusts",)),
    "expired client certificate": Case(_expired_certificate, ("ssl.certificate.location", "has not expired")),
    "token that nobody signed": Case(
        lambda kafka: kafka.by_callable() | {"oauth_cb": lambda _config: unsecured_token(USER)},
        ("the broker refuses the token", "issuer, audience, end and signature"),
    ),
    "wrong client secret": Case(
        lambda kafka: kafka.oidc(sasl_oauthbearer_client_secret="wrong"),
        ("invalid_client", "sasl.oauthbearer.token.endpoint.url, .client.id, .client.secret"),
    ),
    "unknown authority of the token endpoint": Case(
        lambda kafka: kafka.oidc(https_ca_location=str(kafka.foreign_ca)), ("https.ca.location",)
    ),
    "token endpoint that is down": Case(
        lambda kafka: kafka.oidc(sasl_oauthbearer_token_endpoint_url="https://127.0.0.1:1/token"),
        ("sasl.oauthbearer.token.endpoint.url", "that the endpoint answers"),
        Unreachable,
    ),
    "nothing that listens": Case(
        lambda kafka: kafka.client() | {"bootstrap.servers": "127.0.0.1:1"},
        ("Connection refused", "check bootstrap.servers, security.protocol and the network"),
        Unreachable,
    ),
    "callable that raises": Case(
        lambda kafka: kafka.by_callable() | {"oauth_cb": lambda _config: {}["absent"]},
        ("oauth_cb gave no token: it raised KeyError at", "test_kafka_refusals.py"),
        Unreachable,
    ),
    "callable that gives a lifetime": Case(
        lambda kafka: kafka.by_callable() | {"oauth_cb": lambda _config: ("token", 300)},
        ("oauth_cb returned a token that ended", "seconds since the epoch"),
    ),
}
SLOW = {"token endpoint that is down", "nothing that listens"}  # may come up yet, so that they are waited for


@dataclass(frozen=True)
class Answer:
    """What a case came to, and how long that took."""

    error: CompactoryError | None
    seconds: float


@dataclass(frozen=True)
class Trial:
    """All cases, tried side by side, and what is logged meanwhile."""

    answers: Mapping[str, Future[Answer]]
    lines: io.StringIO


@pytest.fixture(scope="module")
def trial(secured_kafka: SecuredKafka) -> Iterator[Trial]:
    with logged() as lines, ThreadPoolExecutor(8) as pool:
        yield Trial({name: pool.submit(_try, secured_kafka, name) for name in CASES}, lines)


def _try(kafka: SecuredKafka, name: str) -> Answer:
    properties = CASES[name].properties(kafka) | {"debug": "all"}
    began = time.monotonic()
    try:
        GlobalStore(properties, ["directory"], stall_timeout=4 if name in SLOW else 30).start()
    except CompactoryError as error:
        return Answer(error, time.monotonic() - began)
    return Answer(None, 0)


@pytest.mark.parametrize("name", CASES)
def test_it_is_told(name: str, trial: Trial, secured_kafka: SecuredKafka) -> None:
    answer = trial.answers[name].result(60)
    assert type(answer.error) is CASES[name].kind, answer.error
    for part in CASES[name].told:
        assert part in str(answer.error), answer.error
    assert answer.seconds < BOUND
    assert secured_kafka.leaks(*everything(answer.error)) == []


def test_nothing_secret_is_logged(trial: Trial, secured_kafka: SecuredKafka) -> None:
    for answer in trial.answers.values():
        answer.result(60)
    assert "rdkafka" in trial.lines.getvalue()
    assert secured_kafka.leaks(trial.lines.getvalue()) == []


IN_A_SHELL = ("foreign authority", "wrong password, SCRAM")


@pytest.fixture(scope="module")
def outcomes(secured_kafka: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """Commands in some of these cases, side by side."""
    with ThreadPoolExecutor(3) as pool:
        folders = {name: tmp_path_factory.mktemp("shell") for name in IN_A_SHELL}
        running = {name: pool.submit(_get, folders[name], CASES[name].properties(secured_kafka)) for name in folders}
        yield {name: future.result(60) for name, future in running.items()}


def _get(folder: Path, properties: Properties) -> Outcome:
    shell = Shell(folder)
    shell.write("compactory.toml", toml(properties))
    return shell("get", "directory", "1", "--json")


@pytest.mark.parametrize("name", IN_A_SHELL)
def test_commands_say_it_once(name: str, outcomes: dict[str, Outcome]) -> None:
    done = outcomes[name]
    assert done.code == 2
    assert len(done.err.splitlines()) == 1, done.err
    for part in CASES[name].told:
        assert part in done.error["message"]


@pytest.mark.parametrize("name", ["another host's certificate", "wrong password, SCRAM"])
def test_a_transactional_producer_is_told(name: str, secured_kafka: SecuredKafka) -> None:
    publisher = Publisher(Kafka(CASES[name].properties(secured_kafka)), "told", "offsets")
    with closing(publisher), pytest.raises(ConfigError) as caught:
        publisher.open(3)
    for part in CASES[name].told:
        assert part in str(caught.value)
    assert "ACL" not in str(caught.value)


def test_an_unencrypted_client_at_an_encrypted_listener_is_told_what_to_check(secured_kafka: SecuredKafka) -> None:
    with pytest.raises(Unreachable, match=r"check .*security\.protocol"):
        Kafka(secured_kafka.server.listener("TLS")).topic_names(timeout=2)
