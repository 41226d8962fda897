"""The orders example on real Kafka and Postgres, by the commands of its README."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from compactory.kafka.client import Kafka
from compactory_cli.stack.port import free_port
from compactory_cli.stack.postgres import embedded_binaries
from compactory_connectors.kafka.topic_reader import read
from tests.source.workload import wait_until

ROOT = Path(__file__).parents[2]
README = ROOT / "examples" / "orders" / "README.md"


CREATE = "import sys; from compactory.kafka.client import Kafka; Kafka(sys.argv[2]).create_topic(sys.argv[5])"
"""What ``kafka-topics.sh`` does, in a tenth of the time."""


class Orders:
    """The service, on a port of its own."""

    def __init__(self, environment: dict[str, str], port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/orders"
        command = [sys.executable, "-m", "uvicorn", "--app-dir", "examples/orders", "service:app", "--port", str(port)]
        self._process = subprocess.Popen(command, env=environment, cwd=ROOT)
        wait_until(self._listens, what="the service")

    def _listens(self) -> bool:
        assert self._process.poll() is None
        try:
            self.all()
        except urllib.error.HTTPError:
            raise
        except OSError:
            return False
        return True

    def all(self) -> Any:
        return json.load(urllib.request.urlopen(self._url, timeout=5))

    def take(self, customer: str, total: int) -> int:
        body = json.dumps({"customer": customer, "total": total}).encode()
        request = urllib.request.Request(self._url, body, {"content-type": "application/json"})
        try:
            return urllib.request.urlopen(request, timeout=10).status
        except urllib.error.HTTPError as error:
            return error.code

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture
def environment(database: str, kafka: str, unique: Callable[[str], str]) -> dict[str, str]:
    ours = {"COMPACTORY_POSTGRES": database, "COMPACTORY_KAFKA": kafka, "ORDERS_POSTGRES": database}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **ours, "ORDERS_TOPIC": unique("order-created"), "PATH": path}


@pytest.fixture
def orders(environment: dict[str, str]) -> Iterator[Orders]:
    found = re.search(r"CREATE TABLE orders [^']+", README.read_text())
    assert found is not None
    with psycopg.connect(environment["ORDERS_POSTGRES"], autocommit=True) as connection:
        connection.execute(found[0].encode())
    compactory("sql install", environment)
    service = Orders(environment, free_port())
    yield service
    service.end()


def compactory(words: str, environment: dict[str, str]) -> str:
    assert f"compactory {words.partition(' --')[0]}" in README.read_text()
    done = subprocess.run(
        ["compactory", *words.split()], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_order_and_its_message_or_neither(orders: Orders, environment: dict[str, str]) -> None:
    topic, kafka = environment["ORDERS_TOPIC"], Kafka(environment["COMPACTORY_KAFKA"])
    kafka.create_topic(topic, partitions=4)
    taken = [orders.take(customer, total) for customer, total in [("C1", 1), ("nobody", 2), ("C1", 3), ("C2", 0)]]
    assert taken == [201, 500, 201, 422]
    compactory("outbox run --once", environment)
    assert [order["total"] for order in orders.all()] == [1, 3]
    records = [json.loads(message.value()) for message in read(kafka, topic)]
    assert records == orders.all()
    (status,) = json.loads(compactory("outbox status --json", environment))["topics"]
    assert (status["topic"], status["pending"], status["locked_by"]) == (topic, 0, None)


@pytest.mark.proof
def test_every_command_of_the_readme_runs(environment: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    topic, port = environment["ORDERS_TOPIC"], free_port()
    tool = tmp_path / "kafka-topics.sh"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{CREATE}" "$@"\n')
    tool.chmod(0o755)
    environment["PATH"] += f"{os.pathsep}{tmp_path}{os.pathsep}{embedded_binaries()}"
    block = re.search(r"```bash\n(.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    started: list[subprocess.Popen[bytes]] = []
    said = ""
    try:
        for line in block[1].replace("8000", str(port)).replace("order-created", topic).splitlines():
            if line.startswith("export"):  # names the servers of this test
                assert {word.partition("=")[0] for word in line.split()[1:]} <= environment.keys()
            elif line.endswith(" &"):
                started.append(subprocess.Popen(shlex.split(line[:-2]), env=environment, cwd=ROOT))
            else:
                if line.startswith("curl"):
                    wait_until(lambda: listens(port), what="the service")
                command = ["bash", "-ec", line]
                said = subprocess.run(
                    command, env=environment, cwd=ROOT, check=True, capture_output=True
                ).stdout.decode()
        kafka = Kafka(environment["COMPACTORY_KAFKA"])
        wait_until(
            lambda: [json.loads(message.value())["total"] for message in read(kafka, topic)] == [1999], what="it"
        )
        assert not [process for process in started if process.poll() is not None]
    finally:
        for process in started:
            process.terminate()
            process.wait(20)
    assert "nothing was published" in said or topic in said


def listens(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/orders", timeout=5)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
