"""Checks that what a user gave for TLS and login fits together, before any client is made.

The client library says of a key that it can't read "PEM lib"; here the files and texts are looked at, so that an error
names the property and the remedy. Contents are never quoted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compactory.nearest import nearest

__all__ = ["credential_problems", "mechanism"]

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
_CERTIFICATES = ("-----BEGIN CERTIFICATE-----", "-----BEGIN TRUSTED CERTIFICATE-----")
_KEYSTORE = "ssl.keystore.location"
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", _KEYSTORE)
_TEXTS = ("ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem")
_LARGEST = 4 << 20  # bytes of a file that are looked at


def mechanism(properties: Mapping[str, Any]) -> str:
    """Return the SASL mechanism under either of its two names; empty when none is given."""
    return str(properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "")


def credential_problems(properties: Mapping[str, Any]) -> Iterator[str]:
    """Yield each problem of TLS and login properties. Reads the files that ``ssl.*`` names."""
    protocol = str(properties.get("security.protocol", "plaintext")).upper()
    yield from _unused(properties, protocol)
    if protocol.startswith("SASL"):
        yield from _login(properties)
    for names, problems in ((_FILES, _file), (_TEXTS, _text)):
        for name in names:
            if name in properties:
                yield from problems(name, str(properties[name]))
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
    content = _read(path)
    if isinstance(content, str):
        yield f"{name}: {path} can't be read: {content}"
    elif name == _KEYSTORE:
        if b"-----BEGIN" in content:
            yield f"{name}: {path} is PEM, not PKCS12: use ssl.certificate.location and ssl.key.location"
    elif missing := _missing_part(name, content.decode(errors="replace")):
        yield f"{name}: {path} holds no {missing}"


def _text(name: str, text: str) -> Iterator[str]:
    lines = text.strip().splitlines()
    if "\\n" in text:
        yield f"{name} has \\n written out where its lines end: give real line ends ({_three_quotes(name)})"
    elif missing := _missing_part(name, text):
        yield f"{name} holds no {missing}"
    elif len(lines) < 3:
        yield f"{name} has lost its line ends: give the lines as they are in the file ({_three_quotes(name)})"
    elif any(line != line.strip() for line in lines):
        yield f"{name} has lines that begin or end with blanks: remove these ({_three_quotes(name)})"


def _pair(properties: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is missing: a certificate needs its key, a key its certificate, an encrypted key its password."""
    certificate = _first_set(properties, "ssl.certificate.location", "ssl.certificate.pem")
    key = _first_set(properties, "ssl.key.location", "ssl.key.pem")
    if certificate and not key:
        yield f"{certificate} is given without its key: set ssl.key.location"
    elif key and not certificate:
        yield f"{key} is given without its certificate: set ssl.certificate.location"
    if key and not properties.get("ssl.key.password") and _is_encrypted(str(properties[key]), key):
        yield f"{key}: the key is encrypted: give its password as ssl.key.password"


def _is_encrypted(value: str, name: str) -> bool:
    content = value if name.endswith(".pem") else _read(value)
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    return "BEGIN ENCRYPTED PRIVATE KEY" in text or "Proc-Type: 4,ENCRYPTED" in text


def _read(path: str) -> bytes | str:
    """Return the content, or as text why it can't be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_LARGEST)
    except OSError as error:
        return error.strerror or type(error).__name__


def _first_set(properties: Mapping[str, Any], *names: str) -> str | None:
    return next((name for name in names if properties.get(name)), None)


def _missing_part(name: str, text: str) -> str | None:
    """Return the part of PEM that the text lacks."""
    if ".key." in name:
        return None if "PRIVATE KEY-----" in text else "private key in PEM (a line -----BEGIN … PRIVATE KEY-----)"
    return None if any(mark in text for mark in _CERTIFICATES) else f"certificate in PEM (a line {_CERTIFICATES[0]})"


def _three_quotes(name: str) -> str:
    variable = "COMPACTORY_KAFKA_" + name.upper().replace(".", "_")
    return f"in TOML between ''' and ''', or name its file in {variable}_FILE"
