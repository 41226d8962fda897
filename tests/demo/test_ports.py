"""Ports of the demo's servers, beside others that take ports too."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compactory_cli.stack import port
from compactory_cli.stack.port import answers, free_port, is_free


@contextmanager
def connection_from(near: int) -> Iterator[None]:
    """A connection whose near end has this port, as the system gives one to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.bind(("127.0.0.1", near))
        client.connect(server.getsockname())
        yield


def test_an_outgoing_connection_occupies_its_port() -> None:
    taken = free_port()
    assert is_free(taken)
    with connection_from(taken):
        assert not is_free(taken)
        assert not answers(taken)


def test_a_listener_occupies_its_port() -> None:
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        assert not is_free(taken)
        assert answers(taken)
    assert is_free(taken)


def test_a_server_may_come_back_to_a_port_whose_connections_have_just_ended() -> None:
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)) as server, socket.create_connection(("127.0.0.1", taken)):
        server.accept()[0].close()  # the end that closes first waits for stray packets, for a minute
    assert is_free(taken)


@pytest.mark.parametrize("first", [32768, 12000])
def test_free_ports_are_none_that_connections_get(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "_OUTGOING", tmp_path / "range")
    (tmp_path / "range").write_text(f"{first}\t60999\n")
    assert all(1024 <= free_port() < first for _ in range(20))


def test_where_the_system_does_not_say_which_those_are_a_port_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "_OUTGOING", tmp_path / "nothing")
    assert is_free(free_port())


def test_the_preferred_port_where_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        preferred = server.getsockname()[1]
        assert free_port(preferred) != preferred
    assert free_port(preferred) == preferred


def test_a_port_is_given_once_though_its_server_does_not_listen_yet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        preferred = server.getsockname()[1]
    command = f"from compactory_cli.stack.port import free_port; print(free_port({preferred}), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == preferred
        assert is_free(preferred)
        assert free_port(preferred) != preferred
        process.kill()
    assert free_port(preferred) == preferred
    assert free_port(preferred) != preferred
