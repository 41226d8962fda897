"""A proxy before a Kafka broker that delays the request which ends a transaction (EndTxn), as a bad network does."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Literal

__all__ = ["ADD_PARTITIONS", "END", "PRODUCE", "EndProxy"]

PRODUCE, ADD_PARTITIONS, END = 0, 24, 26  # keys of Kafka's requests (https://kafka.apache.org/protocol)

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST


class EndProxy:
    """Forwards requests one by one to ``target``, a port of 127.0.0.1.

    `hold` keeps back the next EndTxn, whose client sees a reset or silence and repeats it on another connection. Later,
    right before the ``nth`` request of kind ``before`` is forwarded, the broker gets the old one; ``late_error`` is
    Kafka's code in the answer to it (47: INVALID_PRODUCER_EPOCH, 48: INVALID_TXN_STATE, 0: it has ended something).
    """

    def __init__(self, target: int = 0) -> None:
        self.target = target
        self.broker = ""
        """The broker's own address, for those that are not to be delayed."""
        self.delivered = threading.Event()
        self.held = threading.Event()
        self.late_error: int | None = None
        self._fault: Literal["reset", "silence"] | None = None
        self._late: tuple[socket.socket, socket.socket, bytes] | None = None
        self._before = (PRODUCE, 1)
        self._count = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def hold(self, fault: Literal["reset", "silence"], before: int, nth: int = 1) -> None:
        """Keep the next EndTxn back until the ``nth`` request ``before`` that comes after its repetition."""
        self.delivered.clear()
        self.held.clear()
        self._fault, self._before, self._count, self.late_error = fault, (before, nth), 0, None

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = threading.Thread(target=_copy, args=(server, client), daemon=True)
        try:
            while True:
                frame = _frame(client)
                key = int.from_bytes(frame[4:6], "big")
                if key == END and self._keep_back(client, server, frame, answers):
                    return
                self._deliver_late(key)
                if not answers.is_alive():
                    answers.start()
                server.sendall(frame)
        except OSError:
            client.close()
            server.close()

    def _keep_back(self, client: socket.socket, server: socket.socket, frame: bytes, answers: threading.Thread) -> bool:
        with self._lock:
            fault, self._fault = self._fault, None
            if fault is None:
                return False
            self._late = (client, server, frame)
        if fault == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.shutdown(socket.SHUT_RD)
            client.close()
        self.held.set()
        return True

    def _deliver_late(self, key: int) -> None:
        with self._lock:
            if self._late is None or (key, self._count + 1) != self._before:
                self._count += self._late is not None and key == self._before[0]
                return
            (client, server, frame), self._late = self._late, None
        with socket.create_connection(("127.0.0.1", self.target)) as late:  # the old connection's answers are copied
            late.sendall(frame)
            answer = _frame(late)
        self.late_error = int.from_bytes(answer[-2:], "big")  # of version 1, which librdkafka speaks
        client.close()
        server.close()
        self.delivered.set()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def _frame(source: socket.socket) -> bytes:
    head = _exactly(source, 4)
    return head + _exactly(source, int.from_bytes(head, "big"))


def _exactly(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise ConnectionError
        data += part
    return bytes(data)
