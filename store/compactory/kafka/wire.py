"""A little of Kafka's own protocol, for what the client library does not ask.

Source: https://kafka.apache.org/protocol and the message definitions in Kafka's source.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["SASL_HANDSHAKE", "Answer", "array", "ask", "connect", "exchange", "text", "trust"]

SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_LARGEST = 16 << 20  # bytes of an answer
_CORRELATION = 0x434F4D50
_CLIENT = b"compactory"

Shape = str | list[Any] | tuple[Any, ...]
"""Of an answer: ``h``, ``i``, ``q`` are numbers of 2, 4, 8 bytes, ``s`` is a compact string; a list with one item is a
compact array of it, a tuple a struct, which tagged fields end."""


def text(value: str) -> bytes:
    """Encode a compact string."""
    data = value.encode()
    return _unsigned(len(data) + 1) + data


def array(items: Iterable[bytes]) -> bytes:
    """Encode a compact array of encoded items."""
    listed = list(items)
    return _unsigned(len(listed) + 1) + b"".join(listed)


class Answer:
    """Reads the fields of an answer one after the other. Raises struct.error where it is too short."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def read(self, shape: Shape) -> Any:
        """Read what has a shape: a number, a text, a list, or a tuple."""
        if isinstance(shape, list):
            return [self.read(shape[0]) for _ in range(self._unsigned() - 1)]
        if isinstance(shape, tuple):
            fields = tuple(map(self.read, shape))
            self.pass_tags()
            return fields
        if shape == "s":
            return self.take(max(0, self._unsigned() - 1)).decode()  # a null one is empty
        (number,) = struct.unpack(f">{shape}", self.take(struct.calcsize(shape)))
        return number

    def take(self, size: int) -> bytes:
        """Read bytes."""
        (data,) = struct.unpack_from(f"{size}s", self._data, self._place)
        self._place += size
        return bytes(data)

    def pass_tags(self) -> None:
        """Pass the tagged fields."""
        for _ in range(self._unsigned()):
            self._unsigned()
            self.take(self._unsigned())

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value


def connect(address: str, properties: Mapping[str, Any], timeout: float) -> socket.socket:
    """Return a connection to a broker, with the encryption and the login that client properties say.

    Raises OSError where it can't be opened or the login is refused, ValueError for a login other than SASL PLAIN.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    protocol = str(properties.get("security.protocol", "plaintext")).upper()
    mechanism = str(properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "GSSAPI"))).upper()
    if protocol.startswith("SASL") and mechanism != "PLAIN":
        raise ValueError(f"a login with {mechanism} is not spoken here")
    connection = socket.create_connection((host, int(port)), timeout)
    try:
        if protocol.endswith("SSL"):
            connection = _identified(properties).wrap_socket(connection, server_hostname=host)
        if protocol.startswith("SASL"):
            _log_in(connection, str(properties.get("sasl.username", "")), str(properties.get("sasl.password", "")))
    except BaseException:
        connection.close()
        raise
    return connection


def ask(connection: socket.socket, key: int, version: int, body: bytes, shape: Shape) -> Any:
    """Send a request of a flexible version (KIP-482); return its answer.

    Raises OSError where the broker closes the connection, as it does on a request that it does not know, or does not
    answer in time; struct.error for half an answer.
    """
    answer = exchange(connection, key, version, b"\0" + body + b"\0")
    answer.pass_tags()
    return answer.read(shape)


def exchange(connection: socket.socket, key: int, version: int, body: bytes) -> Answer:
    """Send a request; return its answer behind the request's number. Raises as `ask` does."""
    request = struct.pack(">hhih", key, version, _CORRELATION, len(_CLIENT)) + _CLIENT + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    with connection.makefile("rb") as answers:
        size, correlation = struct.unpack(">ii", answers.read(8))
        if correlation != _CORRELATION or not 4 <= size <= _LARGEST:
            raise ConnectionError("this is no answer of Kafka's")
        return Answer(answers.read(size - 4))


def trust(properties: Mapping[str, Any]) -> ssl.SSLContext:
    """Return what checks certificates as client properties say. Raises OSError, ValueError for bad ones."""
    place, text = properties.get("ssl.ca.location"), properties.get("ssl.ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if place:
        path = Path(str(place))
        context.load_verify_locations(capath=path) if path.is_dir() else context.load_verify_locations(cafile=path)
    elif text:
        context.load_verify_locations(cadata=str(text))
    else:
        context.load_default_certs()
    algorithm = str(properties.get("ssl.endpoint.identification.algorithm", "https")).lower()
    context.check_hostname = algorithm != "none"
    if str(properties.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _identified(properties: Mapping[str, Any]) -> ssl.SSLContext:
    """The user's trust, and the client's certificate where it is in files."""
    context = trust(properties)
    if properties.get("ssl.certificate.location"):
        password = str(properties.get("ssl.key.password", ""))
        context.load_cert_chain(
            str(properties["ssl.certificate.location"]), properties.get("ssl.key.location"), password=password
        )
    return context


def _log_in(connection: socket.socket, user: str, password: str) -> None:
    refused = exchange(connection, SASL_HANDSHAKE, 1, struct.pack(">h", 5) + b"PLAIN").read("h")
    if not refused:
        secret = f"\0{user}\0{password}".encode()
        refused = exchange(connection, _SASL_AUTHENTICATE, 1, struct.pack(">i", len(secret)) + secret).read("h")
    if refused:
        raise ConnectionRefusedError(f"the login was refused (code {refused})")


def _unsigned(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
