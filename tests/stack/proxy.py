"""A TCP proxy on 127.0.0.1 that can fall ill: for tests of what a network does to connections."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable

__all__ = ["Proxy"]

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST instead of FIN


class _Pipe:
    """Both sockets of one connection, and what is to become of them. Its thread alone closes them."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.frozen = False
        self.ending = False
        self.reset = False
        self._wake, self.woken = socket.socketpair()

    def end(self, *, reset: bool = False) -> None:
        self.reset, self.ending = reset, True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def close(self) -> None:
        for end in (self.client, self.server, self._wake, self.woken):
            if self.reset:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.close()


class Proxy:
    """Forwards connections to ``target``, a port of 127.0.0.1.

    Frozen, it acknowledges everything and hands nothing on, as a hanging host does, or a middlebox that has forgotten a
    connection. ``watch`` sees what a client sends and may act on it first.
    """

    def __init__(self, target: int | None = None) -> None:
        self.target = target
        self.watch: Callable[[bytes], None] | None = None
        self._mute = False
        self._deaf = False
        self._pipes: set[_Pipe] = set()
        self._lock = threading.Lock()  # guards the set
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._pipes)

    def freeze(self, *, new: bool = True) -> None:
        """Hand nothing on from now on, on connections that there are, and unless ``new`` is off on later ones."""
        with self._lock:
            self._mute = new
            for pipe in self._pipes:
                pipe.frozen = True

    def swallow_answers(self) -> None:
        """Hand on what clients send, and drop what servers answer: a half-open network."""
        self._deaf = True

    def thaw(self) -> None:
        """Forward new connections; those that lost bytes are cut off."""
        with self._lock:
            ill = [pipe for pipe in self._pipes if pipe.frozen or self._deaf]
            self._mute = self._deaf = False
        for pipe in ill:
            pipe.end()

    def cut(self, *, reset: bool = False) -> None:
        """End every connection, orderly or with a reset; new ones are accepted."""
        with self._lock:
            pipes = list(self._pipes)
        for pipe in pipes:
            pipe.end(reset=reset)

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target or 0), timeout=5)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipe = _Pipe(client, server)
        with self._lock:
            self._pipes.add(pipe)
            pipe.frozen = self._mute
        try:
            while self._pump(pipe):
                pass
        except OSError:
            pass
        finally:
            with self._lock:
                self._pipes.discard(pipe)
            pipe.close()

    def _pump(self, pipe: _Pipe) -> bool:
        """Hand on what there is; False at the end."""
        ready, _, _ = select.select([pipe.client, pipe.server, pipe.woken], [], [])
        if pipe.ending:
            return False
        for end, other in ((pipe.client, pipe.server), (pipe.server, pipe.client)):
            if end not in ready:
                continue
            data = end.recv(1 << 16)
            if not data:
                return False
            if end is pipe.client and self.watch is not None:
                self.watch(data)
            if not (pipe.frozen or (self._deaf and end is pipe.server)):
                other.sendall(data)
        return True
