"""An Apache Kafka that talks TLS and SASL in every way that Kafka knows, and what clients need to talk to it.

All certificates, accounts and keys are made for the run. The markers in `SECRETS` are what no output may ever show.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.security.identity_provider import AUDIENCE, IdentityProvider
from tests.stack.apache_kafka import ApacheKafka
from tests.stack.certificates import Authority, Certified

__all__ = ["CLIENT_SECRET", "KEY_PASSWORD", "PASSWORD", "USER", "SecuredKafka"]

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
            java=["-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=" + self._keys_url()],
            heap="320m",
        )

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
                "sasl.jaas.config": f"{_SASL}.oauthbearer.OAuthBearerLoginModule required;",
                "sasl.server.callback.handler.class": handler,
                "sasl.oauthbearer.jwks.endpoint.url": self._keys_url(),
                "sasl.oauthbearer.expected.audience": AUDIENCE,
            }
        }

    def _keys_url(self) -> str:
        return self.write("keys.json", json.dumps(self.identity.keys())).as_uri()


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
