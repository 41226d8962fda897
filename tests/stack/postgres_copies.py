"""Copies of a Postgres server: of a new one, which takes no time, and as operators make them (backups, upgrades)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from compactory_cli.stack.maven import locked
from compactory_cli.stack.postgres import PostgresServer

__all__ = ["base_backup", "empty_like", "new_server", "put_back", "run", "set_aside", "upgraded"]

_BUILD: Final = Path(__file__).parents[2] / "build" / "postgres"


def new_server(*, binaries: Path | None = None, settings: Mapping[str, str] | None = None) -> PostgresServer:
    """A server, not started, with a copy of the data that ``initdb`` made once: all have one system identifier."""
    server = PostgresServer(binaries=binaries, settings=settings)
    version = subprocess.check_output([server._binaries / "postgres", "--version"], text=True)
    kept = _BUILD / f"initdb-{version.split()[2]}"
    with locked(_BUILD):
        if not kept.exists():
            _make_data(PostgresServer(binaries=binaries), kept)
    subprocess.run(["cp", "-a", kept, server._data], check=True)
    return server


def _make_data(server: PostgresServer, kept: Path) -> None:
    partial = kept.with_name("partial")
    try:
        server.start()
        server.stop()
        subprocess.run(["rm", "-rf", partial], check=True)
        subprocess.run(["cp", "-a", server._data, partial], check=True)
        partial.rename(kept)
    finally:
        server.remove()


def run(server: PostgresServer, program: str, *arguments: str | Path) -> str:
    """Run one of Postgres' programs as the server's user in its folder; what it wrote."""
    command = [str(server._binaries / program), *map(str, arguments)]
    environment = {"LC_ALL": "C", "PATH": os.environ["PATH"], "PGUSER": "postgres", "PGHOST": "127.0.0.1"}
    done = subprocess.run(
        command, user=server._user, cwd=server.home, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode and Path(command[0]).is_symlink():
        pytest.skip(f"{program} is of another version than the server: {done.stderr[-200:]}")
    assert done.returncode == 0, f"{program}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def empty_like(
    server: PostgresServer, *, port: int | None = None, settings: Mapping[str, str] | None = None
) -> PostgresServer:
    """Another server of the same binaries and user, whose data folder is still to be made."""
    other = PostgresServer(port=port, binaries=server._binaries, settings={"fsync": "off", **(settings or {})})
    if server._user is not None:
        os.chown(other.home, server._user, server._user)
    return other


def base_backup(
    server: PostgresServer,
    *options: str,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> PostgresServer:
    """A server made by ``pg_basebackup`` from a running one, not started."""
    other = empty_like(server, port=port, settings=settings)
    run(server, "pg_basebackup", "-p", str(server.port), "-c", "fast", "-D", other._data, *options)
    return other


def set_aside(server: PostgresServer) -> Path:
    """A copy of a stopped server's data folder."""
    aside = server.home / "aside"
    subprocess.run(["cp", "-a", server._data, aside], check=True)
    return aside


def put_back(server: PostgresServer, aside: Path) -> None:
    """The stopped server's data folder becomes what was set aside."""
    shutil.rmtree(server._data)
    aside.rename(server._data)


def upgraded(server: PostgresServer) -> PostgresServer:
    """What ``pg_upgrade`` makes of a stopped server, on the same port, not started."""
    other = empty_like(server, port=server.port)
    run(other, "initdb", "-D", other._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-locale")
    folders = ("-b", server._binaries, "-B", server._binaries, "-d", server._data, "-D", other._data)
    run(other, "pg_upgrade", *folders, "-U", "postgres", "--no-sync", "--socketdir", other.home)
    return other
