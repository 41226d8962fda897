"""The console as commands start it: beside the HTTP API, and below a path."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from compactory_cli.stack.port import free_port
from tests.source.workload import wait_until
from tests.store.topics import Topics


def answer(url: str) -> str:
    """Return the body that answers; an empty text while nobody does."""
    try:
        with urlopen(url, timeout=20) as response:
            return str(response.read().decode())
    except (URLError, TimeoutError):
        return ""


def test_a_server_serves_the_console_at_its_path(kafka: str, unique: Callable[[str], str], tmp_path: Path) -> None:
    topics = Topics(kafka, unique)
    name = topics.create()
    topics.produce(name, ("T1", b'{"acquirerId": "A1"}'))
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "compactory_cli", "serve", name, "--console", "--kafka", kafka]
    process = subprocess.Popen([*command, "--listen", url.removeprefix("http://")], cwd=tmp_path)
    try:
        wait_until(lambda: name in answer(f"{url}/console/"), 60, "the directory in the console")
        assert f'href="/console/servers/0/directories/{name}"' in answer(f"{url}/console/")
        assert "A1" in answer(f"{url}/console/servers/0/directories/{name}/entry?key=T1")
        assert "Compactory" in answer(f"{url}/console/sign-in")
        assert answer(f"{url}/v1/directories/{name}/entries/T1") == '{"acquirerId": "A1"}'
    finally:
        process.terminate()
        assert process.wait(20) == 0
