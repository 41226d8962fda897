"""Checks that what a user gave for TLS and login fits together, before any client is made.

The client library ignores credentials that the protocol does not use, and its errors do not name a missing file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compactory.nearest import nearest

__all__ = ["credential_problems", "mechanism"]

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
_KEYSTORE = "ssl.keystore.location"
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", _KEYSTORE)


def mechanism(properties: Mapping[str, Any]) -> str:
    """Return the SASL mechanism under either of its two names; empty when none is given."""
    return str(properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "")


def credential_problems(properties: Mapping[str, Any]) -> Iterator[str]:
    """Yield each problem of TLS and login properties. Reads the files that ``ssl.*`` names."""
    protocol = str(properties.get("security.protocol", "plaintext")).upper()
    yield from _unused(properties, protocol)
    if protocol.startswith("SASL"):
        yield from _login(properties)
    for name in _FILES:
        if name in properties:
            yield from _file(name, str(properties[name]))
    yield from _pair(properties)


def _unused(properties: Mapping[str, Any], protocol: str) -> Iterator[str]:
    """Yield a problem for credentials that the protocol would silently ignore."""
    sasl = next((name for name in properties if name.startswith("sasl.")), None)
    tls = next((name for name in properties if name.startswith("ssl.")), None)
    if sasl and not protocol.startswith("SASL"):
        yield f"{sasl} is given, but security.protocol {protocol} does not log in: set security.protocol to SASL_SSL"
    if tls and not protocol.endswith("SSL"):
        better = "SASL_SSL" if sasl else "SSL"
        yield f"{tls} is given, but security.protocol {protocol} encrypts nothing: set security.protocol to {better}"


def _login(properties: Mapping[str, Any]) -> Iterator[str]:
    chosen = mechanism(properties)
    if not chosen:
        yield f"sasl.mechanism is missing: set one of {', '.join(_MECHANISMS[:-1])}"
    elif chosen not in _MECHANISMS:
        hint = nearest(chosen, _MECHANISMS) or f"; choose one of {', '.join(_MECHANISMS[:-1])}"
        yield f"sasl.mechanism {chosen!r} is none that is known here{hint}"
    elif chosen == "OAUTHBEARER":
        yield from _token(properties)
    elif chosen != "GSSAPI":
        for name in ("sasl.username", "sasl.password"):
            if not properties.get(name):
                yield f"{name} is missing: sasl.mechanism {chosen} needs it"


def _token(properties: Mapping[str, Any]) -> Iterator[str]:
    callback = properties.get("oauth_cb")
    unsecured = str(properties.get("enable.sasl.oauthbearer.unsecure.jwt", "false")).lower() == "true"
    oidc = str(properties.get("sasl.oauthbearer.method", "default")).lower() == "oidc"
    if callback is not None and not callable(callback):
        yield f"oauth_cb must be a callable that returns (token, when it ends), not {type(callback).__name__}"
    elif callback is None and not unsecured and not oidc:
        yield (
            "sasl.mechanism OAUTHBEARER needs a source of tokens: set sasl.oauthbearer.method=oidc with"
            " sasl.oauthbearer.client.id, .client.secret and .token.endpoint.url, or give a callable as oauth_cb"
        )


def _file(name: str, path: str) -> Iterator[str]:
    if name == "ssl.ca.location" and (path == "probe" or Path(path).is_dir()):
        return
    try:
        with Path(path).open("rb") as file:
            content = file.read(1 << 16)
    except OSError as error:
        yield f"{name}: {path} can't be read: {error.strerror or type(error).__name__}"
        return
    if name == _KEYSTORE and b"-----BEGIN" in content:
        yield f"{name}: {path} is PEM, not PKCS12: use ssl.certificate.location and ssl.key.location"


def _pair(properties: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is missing: a certificate needs its key, a key its certificate."""
    certificate = _first_set(properties, "ssl.certificate.location", "ssl.certificate.pem")
    key = _first_set(properties, "ssl.key.location", "ssl.key.pem")
    if certificate and not key:
        yield f"{certificate} is given without its key: set ssl.key.location"
    elif key and not certificate:
        yield f"{key} is given without its certificate: set ssl.certificate.location"


def _first_set(properties: Mapping[str, Any], *names: str) -> str | None:
    return next((name for name in names if properties.get(name)), None)
