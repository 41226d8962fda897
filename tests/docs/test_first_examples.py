"""The first example of a page about a worker runs as it is written, from its first line."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.docs.pages import Block, blocks
from tests.docs.test_examples import Folder, background, in_its_place
from tests.processes.harness import committed
from tests.source.workload import wait_until
from tests.stack.apache_kafka import QUICK, VERSION, jars

WORKERS = ("compactory jobs run", "compactory outbox run", "compactory process run")  # each runs until SIGTERM
OLD = ("3.3", "3.4", "3.5", "3.6")  # Kafka's tools were in another package


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A working folder in which Kafka's own tool to create topics is on PATH."""
    tool = tmp_path / "bin" / "kafka-topics.sh"
    tool.parent.mkdir()
    main = "kafka.admin.TopicCommand" if (VERSION or "").startswith(OLD) else "org.apache.kafka.tools.TopicCommand"
    tool.write_text(f"#!/bin/sh\nexec java {QUICK} -cp '{jars()}/*' {main} \"$@\"\n")
    tool.chmod(0o755)
    folder = Folder(tmp_path)
    folder.environment["PATH"] = os.pathsep.join([str(tool.parent), folder.environment["PATH"]])
    return folder


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
    page = blocks("sh", "python", run="processes")
    printed = follow(folder, page, places, lambda: bool(committed(kafka, f"{topic}_created")))
    assert '"account": "account of info@acme.org"' in printed or '"account":"account of info@acme.org"' in printed
