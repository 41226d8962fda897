"""An Apache Kafka that talks TLS and SASL in every way that Kafka knows, and what clients need to talk to it.

All certificates, accounts and keys are made for the run. `SecuredKafka.secrets` are what no output may ever show.
"""

from __future__ import annotations

import io
import json
import logging
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from compactory.kafka.client import Kafka
from tests.security.identity_provider import AUDIENCE, IdentityProvider
from tests.stack.apache_kafka import SHORT, ApacheKafka, new_admin
from tests.stack.certificates import Authority, Certified

__all__ = ["CLIENT_SECRET", "KEY_PASSWORD", "PASSWORD", "USER", "SecuredKafka", "everything", "logged", "toml"]

USER = "payments"
PASSWORD = "Geheim-Passwort-1"
KEY_PASSWORD = "Geheim-Schluessel-2"
CLIENT_SECRET = "Geheim-Mandant-3"

_SASL = "org.apache.kafka.common.security"
_LISTENERS = {
    "TLS": "SSL",
    "MTLS": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "SASL": "SASL_SSL",
    "AGAIN": "SASL_PLAINTEXT",  # its connections log in again after a second
    "OIDC": "SASL_SSL",
}


class SecuredKafka:
    """The broker, its authority and its identity provider; ``client(…)`` gives properties that work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority("Test CA")
        self.foreign = Authority("Foreign CA")
        self.client_certificate = self.authority.sign("payments", ("payments.example",))
        self.ca = self.write("ca.pem", self.authority.pem)
        self.foreign_ca = self.write("foreign-ca.pem", self.foreign.pem)
        self.certificate = self.write("client.pem", self.client_certificate.certificate_pem)
        self.key = self.write("client.key", self.client_certificate.key_pem())
        self.encrypted_key = self.write("client-encrypted.key", self.client_certificate.key_pem(KEY_PASSWORD))
        server = self.authority.sign("broker")
        self.identity = IdentityProvider(self.write("identity.pem", _together(server)), USER, CLIENT_SECRET)
        self.server = ApacheKafka(
            listeners=_LISTENERS,
            scram={USER: PASSWORD},
            settings=self._settings(server),
            java=[*SHORT, "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=" + self._keys_url()],
            heap="320m",
        )

    def start(self) -> None:
        self.identity.start()
        self.server.start()

    def remove(self) -> None:
        self.identity.stop()
        self.server.remove()

    def topic(self, name: str) -> str:
        """A new compacted topic with one entry."""
        Kafka(self.server.address).create_topic(name, partitions=1, config={"cleanup.policy": "compact"})
        self.put(name, "1", 1)
        return name

    def put(self, topic: str, key: str, number: int) -> None:
        """Write an entry, by the listener that asks for nothing."""
        producer = Producer({"bootstrap.servers": self.server.address, "log_level": 0})
        producer.produce(topic, json.dumps({"n": number}).encode(), key)
        assert producer.flush(30) == 0

    def set_password(self, user: str, password: str) -> None:
        """Give a user, new or not, this password for SCRAM; a former one is refused from now on."""
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion(user, scram, password.encode())
        admin = new_admin({"bootstrap.servers": self.server.address})
        admin.alter_user_scram_credentials([change])[user].result()

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def client(self, listener: str = "TLS", **more: Any) -> dict[str, Any]:
        """Properties of a client that trusts the authority; ``more`` are further ones, dots as ``_``."""
        own = {
            "bootstrap.servers": self.server.listener(listener),
            "security.protocol": _LISTENERS[listener],
            "ssl.ca.location": str(self.ca),
        }
        return own | {name.replace("_", "."): value for name, value in more.items()}

    def both_authorities(self) -> Path:
        """A file as it is while one authority takes over from another."""
        return self.write("both-ca.pem", self.foreign.pem + self.authority.pem)

    def keystore(self) -> Path:
        """The client's certificate and key in PKCS12, locked with `KEY_PASSWORD`."""
        made = self.folder / "client.p12"
        made.write_bytes(self.client_certificate.pkcs12(KEY_PASSWORD))
        return made

    def certified(self, **more: Any) -> dict[str, Any]:
        """Properties of a client that shows its certificate."""
        files = {"ssl_certificate_location": str(self.certificate), "ssl_key_location": str(self.key)}
        return self.client("MTLS", **{**files, **more})

    def login(self, mechanism: str, **more: Any) -> dict[str, Any]:
        """Properties of a client that logs in by name and password."""
        account = {"sasl_mechanism": mechanism, "sasl_username": USER, "sasl_password": PASSWORD}
        return self.client("SASL", **{**account, **more})

    def oidc(self, **more: Any) -> dict[str, Any]:
        """Properties of a client that gets its tokens from the identity provider."""
        own = {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": USER,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
            "sasl.oauthbearer.token.endpoint.url": self.identity.url,
            "https.ca.location": str(self.ca),
        }
        return self.client("OIDC") | own | {name.replace("_", "."): value for name, value in more.items()}

    def by_callable(self, listener: str = "OIDC", **more: Any) -> dict[str, Any]:
        """Properties of a client that gets the provider's tokens by a callable of its own."""
        own = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": partial(self._token, CLIENT_SECRET)}
        return self.client(listener) | own | {name.replace("_", "."): value for name, value in more.items()}

    def unsecured(self, **more: Any) -> dict[str, Any]:
        """Properties of a client that makes its tokens itself; for trials, as nobody signs them."""
        own = {
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={USER}",
        }
        return self.client("SASL") | own | {name.replace("_", "."): value for name, value in more.items()}

    def secrets(self) -> list[str]:
        """Everything secret that was used so far, one distinctive part of each."""
        keys = [self.client_certificate.key_pem(), self.encrypted_key.read_text()]
        return [PASSWORD, KEY_PASSWORD, CLIENT_SECRET, *(key.splitlines()[1] for key in keys), *self.identity.issued]

    def leaks(self, *texts: str) -> list[str]:
        """Which secrets the texts hold."""
        return [secret for secret in self.secrets() if any(secret in text for text in texts)]

    def _token(self, _secret: str, _config: str) -> tuple[str, float]:
        return self.identity.token(), time.time() + self.identity.lifetime

    def _settings(self, server: Certified) -> dict[str, str]:
        truststore = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca)}
        elsewhere = self.authority.sign("elsewhere", ("kafka.example",))
        stores = dict.fromkeys(_LISTENERS, server) | {
            "EXPIRED": self.authority.sign("late", days=-2),
            "ELSEWHERE": elsewhere,
        }
        settings = {
            "listener.name.tls.ssl.client.auth": "requested",
            "listener.name.mtls.ssl.client.auth": "required",
            **_sasl("sasl", _passwords()),
            **_sasl("again", _passwords()),
            "listener.name.again.connections.max.reauth.ms": "1000",
            **_sasl("oidc", self._oidc()),
        }
        for name, certified in stores.items():
            path = self.write(f"{name.lower()}-keystore.pem", _together(certified))
            own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(path), **truststore}
            settings |= {f"listener.name.{name.lower()}.{key}": value for key, value in own.items()}
        return settings

    def _oidc(self) -> dict[str, dict[str, str]]:
        handler = f"{_SASL}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        return {
            "OAUTHBEARER": {
                "connections.max.reauth.ms": "3600000",  # a connection lives as long as its token, unless it is renewed
                "sasl.jaas.config": f"{_SASL}.oauthbearer.OAuthBearerLoginModule required;",
                "sasl.server.callback.handler.class": handler,
                "sasl.oauthbearer.jwks.endpoint.url": self._keys_url(),
                "sasl.oauthbearer.expected.audience": AUDIENCE,
            }
        }

    def _keys_url(self) -> str:
        return self.write("keys.json", json.dumps(self.identity.keys())).as_uri()


def toml(properties: Mapping[str, Any]) -> str:
    """The properties as compactory.toml has them."""
    lines = [f"{name} = '''{value}'''" for name, value in properties.items()]
    return "\n".join(["[kafka]", *lines, ""])


def everything(error: BaseException | None) -> Iterator[str]:
    """All that an error and those behind it could show."""
    while error is not None:
        yield from (str(error), repr(error), repr(error.args), repr(vars(error)))
        yield "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """All that Compactory logs meanwhile."""
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    logger = logging.getLogger("compactory")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _passwords() -> dict[str, dict[str, str]]:
    scram = f"{_SASL}.scram.ScramLoginModule required;"
    return {
        "PLAIN": {"sasl.jaas.config": f'{_SASL}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'},
        "SCRAM-SHA-256": {"sasl.jaas.config": scram},
        "SCRAM-SHA-512": {"sasl.jaas.config": scram},
        "OAUTHBEARER": {"sasl.jaas.config": f"{_SASL}.oauthbearer.OAuthBearerLoginModule required;"},
    }


def _sasl(listener: str, mechanisms: dict[str, dict[str, str]]) -> dict[str, str]:
    prefix = f"listener.name.{listener}"
    settings = {f"{prefix}.sasl.enabled.mechanisms": ",".join(mechanisms)}
    for mechanism, own in mechanisms.items():
        settings |= {f"{prefix}.{mechanism.lower()}.{name}": value for name, value in own.items()}
    return settings


def _together(certified: Certified) -> str:
    return certified.key_pem() + certified.certificate_pem
