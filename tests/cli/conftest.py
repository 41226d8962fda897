"""Runs ``compactory`` in a process and a folder of its own, without any variable of ours."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from confluent_kafka import Producer

from compactory.kafka.client import Kafka
from compactory_cli import main
from compactory_cli.stack.postgres import PostgresServer
from compactory_sql import read
from tests.stack.command import run_command

ARTICLE = Path(__file__).parents[2] / "examples" / "connectors" / "terminal_acquirer.json"
COMPACTORY = [sys.executable, "-m", "compactory_cli"]
NOBODY_HOME = "127.0.0.1:1"  # nothing listens there


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err.splitlines()[-1])


def in_process(*arguments: str | Path) -> Outcome:
    """A command without a process of its own, which would take most of these tests' time."""
    out, err = io.StringIO(), io.StringIO()
    words = ["compactory", *map(str, arguments)]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "stdin", io.StringIO())
        code = main._run()
    return Outcome(code, out.getvalue(), err.getvalue())


class Shell:
    """A folder, and an environment without anything of ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours = ("COMPACTORY_", "TPP_")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)} | {"COLUMNS": "200"}

    def __call__(self, *arguments: str | Path, **environment: str) -> Outcome:
        done = run_command(arguments, folder=self.folder, environment={**self.environment, **environment})
        assert "Traceback" not in done.stderr, done.stderr
        return Outcome(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            COMPACTORY + [str(argument) for argument in arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C works also where the tests are a shell's background job, which ignores it
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


@pytest.fixture
def compactory(tmp_path: Path) -> Shell:
    """``compactory(…)`` runs a command and returns its outcome."""
    return Shell(tmp_path)


@pytest.fixture
def topic(kafka: str, unique: Callable[[str], str]) -> str:
    """A compacted topic of three terminals, keyed by id: one inactive, and a bad record of a further key."""
    name = unique("terminals")
    Kafka(kafka).create_topic(name, partitions=1, config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": kafka})
    for number, active in ((1, True), (2, True), (3, False)):
        value = {"id": number, "terminalId": f"T{number}", "acquirerId": f"Ä{number}", "isActive": active}
        producer.produce(name, json.dumps(value, ensure_ascii=False).encode(), str(number), timestamp=1_700_000_000_000)
    producer.produce(name, b"{", "bad")
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def terminals(database: str) -> str:
    """URL of a database with the article's table and five terminals."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(read("templates/terminal_acquirer.sql").encode())
        connection.execute(
            "INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
            " SELECT 'T' || n, 'A' || n FROM generate_series(1, 5) AS n"
        )
    return database


@pytest.fixture
def guarded(postgres_server: PostgresServer, unique: Callable[[str], str]) -> Iterator[str]:
    """URL, with its password, of a role that needs one; everybody else goes on without."""
    role, secret = unique("role").replace("-", "_"), "s3cr3t/pass"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{secret}'")
        (file,) = connection.execute("SHOW hba_file").fetchone() or ("",)
        rules = f"SELECT * FROM (VALUES ('host all {role} all scram-sha-256'), ('host all all all trust')) AS rules"
        connection.execute(f"COPY ({rules}) TO '{file}'")
        connection.execute("SELECT pg_reload_conf()")
        yield f"postgresql://{role}:{secret.replace('/', '%2F')}@127.0.0.1:{postgres_server.port}/postgres"
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


class Article:
    """The article's connector, and what its placeholders stand for."""

    def __init__(self, shell: Shell, url: str, prefix: str) -> None:
        self.path = Path(shutil.copy(ARTICLE, shell.folder / f"{prefix}.json"))
        self.topic = f"{prefix}terminal_acquirer"
        parts = urlsplit(url)
        properties = {
            "reference-data.db.url": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
            "reference-data.db.user": parts.username,
            "reference-data.db.password": "never printed",
            "kafka.topic.prefix": prefix,
        }
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        self.arguments = (self.path, "--provider", f"tpp={shell.write(f'{prefix}.properties', text)}")


@pytest.fixture
def article(compactory: Shell, terminals: str, unique: Callable[[str], str]) -> Article:
    """The article's connector on a fresh database and topic."""
    return Article(compactory, terminals, unique("p") + "-")
