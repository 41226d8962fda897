"""Security properties of Kafka's Java client that a user may bring along, and what takes their place here.

Names on the left: Apache Kafka's documentation, "Security"; on the right librdkafka's CONFIGURATION.md. No value is
ever quoted: most of them are secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["CONVERT_KEYSTORE", "CONVERT_TRUSTSTORE", "java_problems", "jks_problem"]

CONVERT_TRUSTSTORE = "keytool -list -rfc -keystore {path} > ca.pem"
CONVERT_KEYSTORE = "keytool -importkeystore -srckeystore {path} -destkeystore {name}.p12 -deststoretype PKCS12"

_PEM_FILES = "use ssl.certificate.location and ssl.key.location (PEM), or ssl.keystore.location (PKCS12)"
_NEGOTIATED = "remove it: TLS 1.2 and 1.3 are negotiated"
_NO_CLASSES = "there are no Java classes here: remove it"
_TOKENS = (
    "there are no Java classes here: set sasl.oauthbearer.method=oidc with sasl.oauthbearer.client.id, .client.secret"
    " and .token.endpoint.url, or give GlobalStore a callable as oauth_cb"
)
_REPLACED = {
    "ssl.truststore.password": "remove it: the PEM file of ssl.ca.location holds nothing secret",
    "ssl.truststore.type": "remove it: ssl.ca.location is always PEM",
    "ssl.truststore.certificates": "the same text goes into ssl.ca.pem",
    "ssl.keystore.certificate.chain": "the same text goes into ssl.certificate.pem",
    "ssl.keystore.key": "the same text goes into ssl.key.pem",
    "ssl.enabled.protocols": _NEGOTIATED,
    "ssl.protocol": _NEGOTIATED,
    "ssl.provider": _NO_CLASSES,
    "ssl.keymanager.algorithm": _NO_CLASSES,
    "ssl.trustmanager.algorithm": _NO_CLASSES,
    "ssl.secure.random.implementation": _NO_CLASSES,
    "ssl.engine.factory.class": _NO_CLASSES,
    "security.providers": _NO_CLASSES,
    "sasl.login.callback.handler.class": _TOKENS,
    "sasl.client.callback.handler.class": _TOKENS,
    "sasl.login.class": _NO_CLASSES,
}
_LOGINS = (
    ("PlainLoginModule", "sasl.mechanism=PLAIN, sasl.username and sasl.password"),
    ("ScramLoginModule", "sasl.mechanism=SCRAM-SHA-256 or -512, sasl.username and sasl.password"),
    ("OAuthBearerLoginModule", "sasl.mechanism=OAUTHBEARER, sasl.oauthbearer.method=oidc and sasl.oauthbearer.*"),
)
_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"


def java_problems(properties: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each property that only the Java client knows, with what to give in its place."""
    for name, value in properties.items():
        advice = _advice(name, str(value))
        if advice is not None:
            yield f"{name} is a property of Kafka's Java client: {advice}"


def jks_problem(name: str, path: str, head: bytes) -> str | None:
    """Say how to convert a Java key store, if the file begins as one."""
    if head[:4] not in (_JKS, _JCEKS):
        return None
    return f"{name}: {path} is a Java key store (JKS): {_conversion(name, path)}"


def _advice(name: str, value: str) -> str | None:
    if name == "ssl.truststore.location":
        return f"use ssl.ca.location, a PEM file; {_conversion(name, value)}"
    if name == "ssl.keystore.type":
        return _keystore_type(value.upper())
    if name == "sasl.jaas.config":
        found = [use for module, use in _LOGINS if module in value]
        return f"use {found[0] if found else 'sasl.mechanism, sasl.username and sasl.password'}"
    return _REPLACED.get(name)


def _keystore_type(kind: str) -> str:
    if kind == "PKCS12":
        return "remove it: ssl.keystore.location is always PKCS12"
    if kind == "PEM":
        return f"remove it; {_PEM_FILES}"
    return f"remove it and convert the key store; {_conversion('ssl.keystore.location', 'keystore.jks')}"


def _conversion(name: str, path: str) -> str:
    """The commands that turn a store of Java's into what is read here."""
    safe = path if re.fullmatch(r"[\w./~-]+", path) else f"'{path}'"
    stem = path.rpartition("/")[2].rpartition(".")[0] or "keystore"
    if "truststore" in name or name == "ssl.ca.location":
        return f"convert with: {CONVERT_TRUSTSTORE.format(path=safe)}; then set ssl.ca.location to ca.pem"
    made = CONVERT_KEYSTORE.format(path=safe, name=stem)
    if name == "ssl.keystore.location":
        return f"convert with: {made}; then set ssl.keystore.location to {stem}.p12"
    parts = {
        "ssl.certificate.location": ("-nokeys -out client.pem", "client.pem"),
        "ssl.key.location": ("-nocerts -out client.key", "client.key"),
    }
    options, result = parts[name]
    return f"convert with: {made} && openssl pkcs12 -in {stem}.p12 {options}; then set {name} to {result}"
