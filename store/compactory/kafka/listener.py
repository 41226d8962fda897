"""Asks a Kafka listener for encryption and logins: the client library says little about a failed connection.

It asks only after a failure, to find the setting that does not fit. It opens one or two short connections and sends
at most a request for the list of login mechanisms (SaslHandshake, KIP-43, before any login). No secret leaves the
process.
"""

from __future__ import annotations

import re
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from socket import create_connection, socket
from typing import Any

from compactory.kafka.wire import SASL_HANDSHAKE, exchange, trust

__all__ = ["Listener", "look", "mismatch"]

_ADDRESS = re.compile(r"(?:\w+://)?(\[[^\]]+\]|[^\s/:\[\]]+):(\d+)")
_EXPIRED, _NOT_YET, _OTHER_NAME = {10}, {9}, {62, 64}  # OpenSSL's X509_V_ERR_…


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """The findings at ``address``: every field was seen, not guessed."""

    address: str
    encrypted: bool
    distrust: str | None = None
    """Why its certificate is not trusted, with the remedy."""
    mechanisms: tuple[str, ...] | None = None
    """Login mechanisms that it offers, none when it takes no login; None when it did not say."""


def look(properties: Mapping[str, Any], hint: str = "", timeout: float = 2.0) -> Listener | None:
    """Ask the listener that ``hint`` (an error's text) names, else the first bootstrap server that answers.

    Takes about ``timeout`` seconds at most. None when nothing can be said for certain. Any thread may call it.
    """
    named = _ADDRESS.search(hint)
    servers = [named.group(0)] if named else str(properties.get("bootstrap.servers", "")).split(",")[:3]
    timeout /= 2 * len(servers)  # each is asked in two ways
    for server in servers:
        if match := _ADDRESS.search(server):
            host, port = match.group(1).strip("[]"), int(match.group(2))
            found = _encrypted(properties, host, port, timeout) or _plain(host, port, timeout)
            if found is not None:
                return found
    return None


def mismatch(properties: Mapping[str, Any], listener: Listener) -> str | None:
    """Say which property does not fit the listener, and what to set; None when all fit."""
    protocol = str(properties.get("security.protocol", "plaintext")).upper()
    login, tls = "SASL" in protocol, protocol.endswith("SSL")
    takes = bool(listener.mechanisms) if listener.mechanisms is not None else login
    right = ("SASL_" if takes else "") + ("SSL" if listener.encrypted else "PLAINTEXT")
    if tls != listener.encrypted or login != takes:
        offers = f" and wants a login ({', '.join(sorted(listener.mechanisms))})" if listener.mechanisms else ""
        offers = offers or (" and takes no login" if login and not takes else "")
        speaks = "TLS" if listener.encrypted else "no TLS"
        return (
            f"security.protocol is {protocol}, but the listener at {listener.address} speaks {speaks}{offers}: set"
            f" security.protocol to {right}, or give the port of another listener in bootstrap.servers"
        )
    return listener.distrust


def _encrypted(properties: Mapping[str, Any], host: str, port: int, timeout: float) -> Listener | None:
    """The listener, if it speaks TLS."""
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE  # only to see whether TLS is spoken; nothing secret is sent
    try:
        with (
            create_connection((host, port), timeout) as raw,
            anyone.wrap_socket(raw, server_hostname=host) as connection,
        ):
            mechanisms = _mechanisms(connection)
    except OSError:
        return None
    distrust = _distrust(properties, host, port, timeout)
    return Listener(address=f"{host}:{port}", encrypted=True, distrust=distrust, mechanisms=mechanisms)


def _plain(host: str, port: int, timeout: float) -> Listener | None:
    """The listener, if it answers as Kafka does without TLS."""
    try:
        with create_connection((host, port), timeout) as connection:
            mechanisms = _mechanisms(connection)
    except OSError:
        return None
    if mechanisms is None:
        return None
    return Listener(address=f"{host}:{port}", encrypted=False, mechanisms=mechanisms)


def _mechanisms(connection: socket) -> tuple[str, ...] | None:
    """Ask which logins there are; none where the listener takes no login, None when it does not answer as Kafka."""
    try:
        answer = exchange(connection, SASL_HANDSHAKE, 1, struct.pack(">h", 0))  # for a mechanism called ""
        answer.read("h")  # an error: there is none of that name, or no login
        return tuple(answer.take(answer.read("h")).decode() for _ in range(answer.read("i")))
    except (OSError, struct.error, UnicodeDecodeError):
        return None


def _distrust(properties: Mapping[str, Any], host: str, port: int, timeout: float) -> str | None:
    """Why the certificate is refused with the user's own trust; None when it is trusted, or that can't be told."""
    try:
        context = trust(properties)
        with create_connection((host, port), timeout) as raw, context.wrap_socket(raw, server_hostname=host):
            return None
    except ssl.SSLCertVerificationError as error:
        return _reason(error, properties, host, port)
    except (OSError, ValueError):
        return None


def _reason(error: ssl.SSLCertVerificationError, properties: Mapping[str, Any], host: str, port: int) -> str:
    shown = f"openssl s_client -connect {host}:{port} -showcerts shows it"
    code = error.verify_code
    if code in _EXPIRED:
        return f"the certificate of the broker at {host}:{port} has expired: renew it on the broker ({shown})"
    if code in _NOT_YET:
        return f"the certificate of the broker at {host}:{port} is not valid yet: compare the clocks ({shown})"
    if code in _OTHER_NAME:
        return (
            f"the certificate of the broker at {host}:{port} is not for {host!r} ({shown}): use a name that it is for"
            " in bootstrap.servers and in the broker's advertised.listeners, or have it issued for this one"
        )
    given = next((name for name in ("ssl.ca.location", "ssl.ca.pem") if properties.get(name)), None)
    trust = f"{given} does not hold" if given else "ssl.ca.location is not given, and the system does not know"
    return (
        f"the certificate of the broker at {host}:{port} is not trusted ({error.verify_message}): {trust} the authority"
        f" that signed it ({shown}); set ssl.ca.location to that authority's certificate in PEM"
    )
