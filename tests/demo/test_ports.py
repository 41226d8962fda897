"""Ports of the demo's servers, beside others that take ports too."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compactory_cli.demo.servers import Servers
from compactory_cli.stack.port import answers, free_port, is_free

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


@contextmanager
def connection_from(port: int) -> Iterator[None]:
    """A connection whose near end has this port, as the system gives one to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.bind(("127.0.0.1", port))
        client.connect(server.getsockname())
        yield


def test_an_outgoing_connection_occupies_its_port() -> None:
    port = free_port()
    assert is_free(port)
    with connection_from(port):
        assert not is_free(port)
        assert not answers(port)


def test_a_listener_occupies_its_port() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
        assert answers(port)
    assert is_free(port)


def test_a_server_may_come_back_to_a_port_whose_connections_have_just_ended() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
        server.accept()[0].close()  # the end that closes first waits for stray packets, for a minute
    assert is_free(port)


@pytest.mark.skipif(not OUTGOING.exists(), reason="the system does not say which ports it gives to connections")
def test_free_ports_are_none_that_connections_get() -> None:
    first = int(OUTGOING.read_text().split()[0])
    assert all(1024 <= free_port() < first for _ in range(20))


def test_a_broker_whose_port_is_taken_meanwhile_gets_another(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    servers.broker.port = free_port()
    chosen = servers.broker.port
    try:
        with connection_from(chosen):
            servers.start_broker()
        assert servers.broker.running
        assert servers.broker.port != chosen
        assert answers(servers.broker.port)
    finally:
        servers.broker.stop()
