"""A little of Kafka's own protocol, for what the client library does not ask: flexible versions (KIP-482) only.

Source: https://kafka.apache.org/protocol and the message definitions in Kafka's source.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from compactory.kafka.listener import trust

__all__ = ["Answer", "Connection", "array", "text"]

A = TypeVar("A")
_LARGEST = 16 << 20  # bytes of an answer
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36


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

    def number(self, kind: str) -> int:
        """Read an integer: ``b``, ``h``, ``i`` or ``q`` for 1, 2, 4 or 8 bytes."""
        (value,) = struct.unpack_from(f">{kind}", self._data, self._place)
        self._place += struct.calcsize(kind)
        return int(value)

    def text(self) -> str:
        """Read a compact string; a null one is empty."""
        length = max(0, self._unsigned() - 1)
        self._place += length
        return self._data[self._place - length : self._place].decode()

    def array(self, read: Callable[[], A]) -> list[A]:
        """Read a compact array whose items ``read`` reads."""
        return [read() for _ in range(self._unsigned() - 1)]

    def tags(self) -> None:
        """Pass the tagged fields."""
        for _ in range(self._unsigned()):
            self._unsigned()
            self._place += self._unsigned()

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value


class Connection:
    """One connection to a broker, with the encryption and the login that client properties say.

    Raises OSError where it can't be opened, the broker closes it (as it does on a request that it does not know) or
    ``deadline`` (by time.monotonic) passes; ValueError for a login other than SASL PLAIN.
    """

    def __init__(self, address: str, properties: Mapping[str, Any], deadline: float) -> None:
        host, _, port = address.rpartition(":")
        protocol = str(properties.get("security.protocol", "plaintext")).upper()
        mechanism = str(properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "GSSAPI"))).upper()
        if protocol.startswith("SASL") and mechanism != "PLAIN":
            raise ValueError(f"a login with {mechanism} is not spoken here")
        self._deadline = deadline
        self._socket = socket.create_connection((host.strip("[]"), int(port)), self._left())
        try:
            if protocol.endswith("SSL"):
                self._socket = _identified(properties).wrap_socket(self._socket, server_hostname=host.strip("[]"))
            if protocol.startswith("SASL"):
                self._log_in(str(properties.get("sasl.username", "")), str(properties.get("sasl.password", "")))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def ask(self, key: int, version: int, body: bytes) -> Answer:
        """Send a request of a flexible version; return its answer behind the header."""
        answer = self._exchange(key, version, b"\0" + body + b"\0")
        answer.tags()
        return answer

    def _log_in(self, user: str, password: str) -> None:
        refused = self._exchange(_SASL_HANDSHAKE, 1, struct.pack(">h", 5) + b"PLAIN").number("h")
        if not refused:
            secret = f"\0{user}\0{password}".encode()
            refused = self._exchange(_SASL_AUTHENTICATE, 1, struct.pack(">i", len(secret)) + secret).number("h")
        if refused:
            raise ConnectionRefusedError(f"the login was refused (code {refused})")

    def _exchange(self, key: int, version: int, body: bytes) -> Answer:
        name = b"compactory"
        request = struct.pack(">hhih", key, version, 1, len(name)) + name + body
        self._socket.settimeout(self._left())
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._receive(4))
        if not 4 <= size <= _LARGEST:
            raise ConnectionError(f"an answer of {size} bytes")
        answer = Answer(self._receive(size))
        answer.number("i")  # the request's number: there is one at a time
        return answer

    def _receive(self, size: int) -> bytes:
        parts, lacking = [], size
        while lacking:
            self._socket.settimeout(self._left())
            part = self._socket.recv(min(lacking, 1 << 16))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts.append(part)
            lacking -= len(part)
        return b"".join(parts)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time is left")
        return left


def _identified(properties: Mapping[str, Any]) -> ssl.SSLContext:
    """The user's trust, and the client's certificate where it is in files without a password."""
    context = trust(properties)
    if str(properties.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if properties.get("ssl.certificate.location"):
        password = str(properties.get("ssl.key.password", ""))
        context.load_cert_chain(
            str(properties["ssl.certificate.location"]), properties.get("ssl.key.location"), password=password
        )
    return context


def _unsigned(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
