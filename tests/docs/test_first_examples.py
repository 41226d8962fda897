"""The first example of a page about a worker runs as it is written, from its first line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from compactory_cli.stack.port import free_port
from tests.docs.pages import Block, blocks
from tests.docs.test_examples import Folder, background, in_its_place
from tests.processors.harness import committed
from tests.source.workload import wait_until
from tests.stack.apache_kafka import QUICK, VERSION, jars

WORKERS = ("compactory jobs run", "compactory outbox run", "compactory process run")  # each runs until SIGTERM
OLD = ("3.3", "3.4", "3.5", "3.6")  # Kafka's tools were in another package


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A working folder in which Kafka's own tools to create topics and to send records are on PATH."""
    tools = tmp_path / "bin"
    tools.mkdir()
    is_old = (VERSION or "").startswith(OLD)
    write_tool(
        tools / "kafka-topics.sh", "kafka.admin.TopicCommand" if is_old else "org.apache.kafka.tools.TopicCommand"
    )
    producer = "kafka.tools.ConsoleProducer" if (VERSION or "").startswith("3.") else None
    write_tool(tools / "kafka-console-producer.sh", producer or "org.apache.kafka.tools.ConsoleProducer")
    folder = Folder(tmp_path)
    folder.environment["PATH"] = os.pathsep.join([str(tools), folder.environment["PATH"]])
    return folder


def write_tool(tool: Path, main: str) -> None:
    tool.write_text(f"#!/bin/sh\nexec java {QUICK} -cp '{jars()}/*' {main} \"$@\"\n")
    tool.chmod(0o755)


def follow(folder: Folder, page: list[Block], places: dict[str, str], is_done: Callable[[], bool]) -> str:
    """Run the blocks of a page in their order and return what they print; the first in Python is ``service.py``.

    Names in ``places`` are replaced. A worker goes on in the background, and must have done its work before the next
    block.
    """
    printed, service = "", folder.path / "service.py"
    with ExitStack() as workers:
        for block in page:
            text = block.text
            for name, place in places.items():
                text = text.replace(name, place)
            if block.language == "python" and not service.exists():
                service.write_text(text)
            elif block.language == "python":
                printed += folder.python(text)
            elif text.splitlines()[-1].startswith(WORKERS):
                worker = workers.enter_context(background(folder, ["bash", "-euc", in_its_place(text)]))
                wait_until(lambda worker=worker: is_done() or worker.poll() is not None, 60, "the worker's work")
                assert worker.poll() is None, worker.communicate()[0]
            else:
                printed += folder.shell(text)
    return printed


def test_the_first_job(folder: Folder, database: str) -> None:
    def is_done() -> bool:
        [(table,)] = sql.execute("SELECT to_regclass('compactory.jobs_finished')").fetchall()
        return table is not None and sql.execute("SELECT FROM compactory.jobs_finished").rowcount == 1

    with psycopg.connect(database, autocommit=True) as sql:
        places = {"postgresql://user@localhost/transports": database}
        follow(folder, blocks("sh", "python", run="jobs"), places, is_done)
        assert sql.execute("SELECT state FROM compactory.jobs").fetchall() == [("succeeded",)]


def test_the_first_message(folder: Folder, database: str, kafka: str, unique: Callable[[str], str]) -> None:
    topic = unique("order-created")
    places = {
        "postgresql://user@localhost/orders": database,
        "localhost:9092": kafka,
        "order-created": topic,
    }
    follow(folder, blocks("sh", "python", run="outbox"), places, lambda: bool(committed(kafka, topic)))
    assert committed(kafka, topic) == [("7", {"id": 7})]


def test_the_first_processor(folder: Folder, kafka: str, unique: Callable[[str], str]) -> None:
    topic = unique("tenants").replace("-", "_")
    places = {"localhost:9092": kafka, "tenants": topic, "register": f"register_{topic}"}
    page = blocks("sh", "python", run="processors")
    printed = follow(folder, page, places, lambda: bool(committed(kafka, f"{topic}_created")))
    assert '"account": "account of info@acme.org"' in printed or '"account":"account of info@acme.org"' in printed


def test_the_first_sink_and_the_first_function(
    folder: Folder, database: str, kafka: str, unique: Callable[[str], str]
) -> None:
    accounts, events = unique("accounts"), unique("events")
    places = {
        "jdbc:postgresql://localhost/app": database,
        "postgresql://user@localhost/app": database,
        "localhost:9092": kafka,
        "0.0.0.0:8080": f"127.0.0.1:{free_port()}",
        "create accounts": f"create {accounts}",
        "create events": f"create {events}",
        "--topic accounts": f"--topic {accounts}",
        '"topics": "accounts"': f'"topics": "{accounts}", "table.name.format": "accounts"',
        '"name": "accounts"': f'"name": "{accounts}"',
        "--topic events": f"--topic {events}",
        '["events"]': f'["{events}"]',
        'name="totals"': f'name="{events}"',
    }
    texts = [block.text for block in blocks("sh", "json", "python", run="sink")]
    for name, place in places.items():
        texts = [text.replace(name, place) for text in texts]
    prepare, config, run, prepare_function, function = texts
    with psycopg.connect(database, autocommit=True) as sql:
        folder.shell(prepare)
        (folder.path / "accounts.json").write_text(config)
        run_and_await(folder, ["bash", "-euc", in_its_place(run)], sql, "SELECT FROM accounts WHERE balance = 5")
        folder.shell(prepare_function)
        run_and_await(folder, [sys.executable, "-c", function], sql, "SELECT FROM totals WHERE n = 1")


def run_and_await(folder: Folder, command: list[str], sql: psycopg.Connection[Any], rows: LiteralString) -> None:
    with background(folder, command) as worker:
        wait_until(lambda: sql.execute(rows).rowcount == 1 or worker.poll() is not None, 60, "the worker's row")
        assert worker.poll() is None, worker.communicate()[0]
