"""Properties for TLS and login that don't fit together are refused before anything is connected."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from compactory import ConfigError, Unreachable
from compactory.kafka.client import Kafka
from compactory.kafka.oauth import TokenSource
from tests.stack.certificates import Authority

HERE = {"bootstrap.servers": "127.0.0.1:1"}
TLS = HERE | {"security.protocol": "SSL"}
LOGIN = HERE | {"security.protocol": "SASL_SSL"}
ACCOUNT = {"sasl.username": "user", "sasl.password": "secret"}
OIDC = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"}

NO_PEM = Path(__file__).parents[2] / "pyproject.toml"
AUTHORITY = Authority("Test CA")
CLIENT = AUTHORITY.sign("client")
PAIR = {"ssl.certificate.pem": CLIENT.certificate_pem, "ssl.key.pem": CLIENT.key_pem()}
LOCKED = PAIR | {"ssl.key.pem": CLIENT.key_pem("right")}


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        (HERE | ACCOUNT, "sasl.username is given, but security.protocol PLAINTEXT does not log in: set"),
        (TLS | ACCOUNT, "sasl.username is given, but security.protocol SSL does not log in: set"),
        (HERE | {"ssl.ca.pem": AUTHORITY.pem}, "security.protocol PLAINTEXT encrypts nothing: set security.protocol"),
        (LOGIN, "sasl.mechanism is missing: set one of PLAIN, SCRAM-SHA-256"),
        (LOGIN | ACCOUNT | {"sasl.mechanism": "SCRAM-SHA-265"}, "did you mean SCRAM-SHA-256?"),
        (LOGIN | ACCOUNT | {"sasl.mechanism": "plain"}, "did you mean PLAIN?"),
        (LOGIN | ACCOUNT | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism: the installed client library was built"),
        (LOGIN | {"sasl.mechanism": "PLAIN", "sasl.username": "u"}, "sasl.password is missing"),
        (LOGIN | {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.password": "u"}, "sasl.username is missing"),
        (LOGIN | {"sasl.mechanism": "OAUTHBEARER"}, "needs a source of tokens: set sasl.oauthbearer.method=oidc"),
        (LOGIN | {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": "x"}, "oauth_cb must be a callable"),
        (LOGIN | OIDC, "sasl.oauthbearer.token.endpoint.url"),
        (TLS | {"ssl.ca.location": "/absent"}, "ssl.ca.location: /absent can't be read: No such file"),
        (TLS | {"ssl.key.location": "/absent"}, "ssl.key.location: /absent can't be read: No such file"),
        (TLS | {"ssl.keystore.location": "/absent"}, "ssl.keystore.location: /absent can't be read: No such file"),
        (TLS | {"ssl.ca.location": str(NO_PEM)}, "ssl.ca.location failed: "),
        (TLS | {"ssl.ca.pem": "secret"}, "has no line -----BEGIN …: give it with its line ends, or a file"),
        (TLS | PAIR | {"ssl.key.pem": CLIENT.certificate_pem}, "key of ssl.key.pem, or it is damaged"),
        (TLS | {"ssl.ca.pem": AUTHORITY.pem.replace("\n", "\\n")}, "from ssl.ca.pem: not in PEM format"),
        (TLS | {"ssl.ca.pem": AUTHORITY.pem.replace("\n", " ")}, "give it with its line ends"),
        (TLS | {"ssl.ca.pem": AUTHORITY.pem.replace("\n", "\n  ")}, "begin or end with blanks: remove these"),
        (TLS | {"ssl.certificate.pem": CLIENT.certificate_pem}, "is given without its key: set ssl.key.location"),
        (TLS | {"ssl.key.pem": CLIENT.key_pem()}, "without its certificate: set ssl.certificate.location"),
        (TLS | PAIR | {"ssl.key.pem": AUTHORITY.sign("x").key_pem()}, "ssl.key.pem"),
        (TLS | LOCKED, "ssl.key.password does not decrypt the key of ssl.key.pem"),
        (TLS | LOCKED | {"ssl.key.password": "wrong"}, "ssl.key.password does not decrypt the key of ssl.key.pem"),
    ],
)
def test_it_is_refused(properties: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Kafka(properties)
    assert told in str(caught.value)
    for secret in ("secret", CLIENT.key_pem().splitlines()[1]):
        assert secret not in str(caught.value).replace("client.secret", "").replace(".secret", "")


def test_files_are_looked_at_too(tmp_path: Path) -> None:
    def file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    certificate = {"ssl.certificate.location": file("client.pem", CLIENT.certificate_pem)}
    locked = file("locked.key", CLIENT.key_pem("right"))
    other = file("other.key", AUTHORITY.sign("other").key_pem())
    store = file("store.p12", CLIENT.certificate_pem)
    locked_store = str(tmp_path / "locked.p12")
    Path(locked_store).write_bytes(CLIENT.pkcs12("right"))
    for properties, told in (
        (certificate | {"ssl.key.location": locked}, "ssl.key.password does not decrypt"),
        (certificate | {"ssl.key.location": locked, "ssl.key.password": "wrong"}, "ssl.key.password does not decrypt"),
        (certificate | {"ssl.key.location": other}, "ssl.key.location: the key does not belong to the certificate"),
        (
            {"ssl.keystore.location": locked_store, "ssl.keystore.password": "wrong"},
            "ssl.keystore.password does not open",
        ),
        ({"ssl.keystore.location": store}, "is PEM, not PKCS12: use ssl.certificate.location and ssl.key.location"),
    ):
        with pytest.raises(ConfigError, match=told):
            Kafka(TLS | properties)


def test_everything_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Kafka(LOGIN | {"sasl.mechanism": "PLAIN", "ssl.ca.location": "/absent", "sasl.jaas.config": "x", "foo": 1})
    assert len(caught.value.problems) == 5


def test_a_token_is_shared_while_it_is_fresh() -> None:
    calls: list[str | None] = []

    def ask(config: str | None) -> tuple[str, float]:
        calls.append(config)
        return f"token {len(calls)}", time.time() + (300 if len(calls) == 1 else 0.001)

    tokens = TokenSource(ask)
    assert tokens("config")[0] == tokens("config")[0] == "token 1"
    assert calls == ["config"]
    assert tokens.hidden("with token 1.") == "with [hidden]."


@pytest.mark.parametrize(
    "answer", [None, "token", ("token",), ("", 1.0), (b"token", 1.0), ("token", "soon"), ("t", True)]
)
def test_an_answer_that_is_no_token(answer: Any) -> None:
    with pytest.raises(ConfigError, match="oauth_cb returned"):
        TokenSource(lambda _config: answer)(None)


def test_what_a_callable_raises_is_not_quoted() -> None:
    def ask(_config: str | None) -> tuple[str, float]:
        raise ValueError("secret")

    with pytest.raises(Unreachable) as caught:
        TokenSource(ask)(None)
    assert "ValueError at" in str(caught.value)
    assert "secret" not in repr(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
