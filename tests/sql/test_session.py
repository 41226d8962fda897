"""Servers and connections that can't be used are refused."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import cycle

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.postgres.session import pooled_by_transaction, refuse_pooling
from compactory_connectors.schema import Adoption, install, plan
from compactory_connectors.source.postgres.server import Server
from compactory_connectors.source.runtime.claim import connect_lease
from tests.stack.postgres_copies import new_server

from .conftest import one

pytestmark = pytest.mark.usefixtures("bare")


@pytest.fixture(scope="module")
def standby() -> Iterator[str]:
    """A server that waits in recovery for ever."""
    server = new_server(settings={"fsync": "off"})
    try:
        server.start()
        server.stop()
        (server.home / "data" / "standby.signal").touch()
        server.start()
        yield server.url()
    finally:
        server.remove()


def test_a_standby_is_refused(standby: str):
    with pytest.raises(ConfigError, match="standby"):
        install(standby)
    with psycopg.connect(standby, autocommit=True) as connection, pytest.raises(ConfigError, match="standby"):
        plan(connection, Adoption(table="t", key=("k",)))


class TransactionPooler:
    """Serves every client by the next one of its backends, like a pooler in transaction mode.

    Enough of it for clients that take turns: what they send goes on as it is, answers go to who asked last.
    """

    def __init__(self, port: int, backends: int) -> None:
        self._backends = [socket.create_connection(("127.0.0.1", port)) for _ in range(backends)]
        self._next = cycle(self._backends)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._greeting = b""
        self._asking: socket.socket | None = None
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        """Call it when every client has left."""
        ends = (self._listener, *self._backends)
        for end in ends:
            end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in ends:
            end.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            length = struct.unpack("!I", client.recv(4))[0]
            startup = client.recv(length - 4)
            for backend in [] if self._greeting else self._backends:
                backend.sendall(struct.pack("!I", length) + startup)
                self._greeting = self._greet(backend)
                self._start(self._answer, backend)
            client.sendall(self._greeting)
            self._start(self._ask, client)

    def _greet(self, backend: socket.socket) -> bytes:
        """What the backend says at first, with another process id: a pooler makes up its own cancel keys."""
        said = b""
        while not said.endswith(b"Z\0\0\0\x05I"):
            said += backend.recv(65536)
        key = said.index(b"K\0\0\0\x0c")
        return said[: key + 5] + struct.pack("!I", 4242) + said[key + 9 :]

    def _ask(self, client: socket.socket) -> None:
        with client:
            while data := client.recv(65536):
                if not data.startswith(b"X"):  # one client's farewell ends no backend
                    self._asking = client
                    next(self._next).sendall(data)

    def _answer(self, backend: socket.socket) -> None:
        while data := backend.recv(65536):
            assert self._asking is not None
            self._asking.sendall(data)


@pytest.mark.parametrize("backends", [1, 3])
def test_a_source_behind_a_pooler_in_transaction_mode_is_refused(database: str, db: psycopg.Connection, backends: int):
    pooler = TransactionPooler(db.info.port, backends)
    place = {"conninfo": database, "port": pooler.port, "sslmode": "disable", "gssencmode": "disable"}
    try:
        with pytest.raises(ConfigError, match="pooler in transaction mode"):
            Server.open(place)
        connection = connect_lease(place)
        with pytest.raises(ConfigError, match="pooler in transaction mode"):
            refuse_pooling(connection)
        connection.close()
    finally:
        pooler.close()


def test_a_pooler_in_transaction_mode_is_refused(database: str, db: psycopg.Connection):
    pooler = TransactionPooler(db.info.port, 1)
    pooled = psycopg.conninfo.make_conninfo(database, port=pooler.port, sslmode="disable", gssencmode="disable")
    try:
        with pytest.raises(ConfigError, match="pooler in transaction mode"):
            install(pooled)
    finally:
        pooler.close()
    assert one(db, "SELECT to_regnamespace('compactory')") is None


def test_a_connection_of_its_own_is_no_pool(db: psycopg.Connection):
    assert not pooled_by_transaction(db, db.info.backend_pid)
