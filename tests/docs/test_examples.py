"""The blocks that say ``<!-- run: … -->`` are run, on the run's Kafka and Postgres."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import psycopg
import pytest
from confluent_kafka import Producer

from compactory import GlobalStore
from compactory.kafka.client import Kafka
from compactory_cli.stack.port import free_port
from compactory_sql import read
from tests.docs.pages import ROOT, Block, blocks

BIN = Path(sys.executable).parent


class Folder:
    """A working folder in which blocks are run, with nothing of ours in the environment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ours = ("COMPACTORY_", "TPP_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.environment["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"

    def run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self.path, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def shell(self, text: str) -> str:
        return self.run(["bash", "-euc", ending(text)])

    def python(self, text: str) -> str:
        return self.run([sys.executable, "-c", text])


def ending(text: str) -> str:
    """The block with every source that would run on told to end when it is done."""
    lines = text.splitlines()
    runs = [
        line.startswith("compactory source run") and "--dry-run" not in line and "--once" not in line for line in lines
    ]
    return "\n".join(f"{line} --once" if runs_on else line for line, runs_on in zip(lines, runs, strict=True))


def one(found: list[Block]) -> str:
    [block] = found
    return block.text


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def here(kafka: str, unique: Callable[[str], str]) -> Callable[[str], str]:
    """Puts the run's Kafka and a topic of three terminals in the place of those that a block names."""
    topic = unique("terminals")
    Kafka(kafka).create_topic(topic, partitions=1, config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": kafka})
    for key in ("T1", "T2", "T3"):
        value = {"terminalId": key, "acquirerId": "A1", "isActive": key != "T3"}
        producer.produce(topic, json.dumps(value).encode(), key)
    assert producer.flush(30) == 0
    return lambda text: text.replace("localhost:9092", kafka).replace("terminal_acquirer", topic)


@pytest.fixture
def terminals(database: str) -> str:
    """URL of a database with the article's table and five terminals."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(read("templates/terminal_acquirer.sql").encode())
        connection.execute(
            "INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
            " SELECT 'T' || n, 'A1' FROM generate_series(1, 5) AS n"
        )
    return database


def test_the_six_lines(folder: Folder, here: Callable[[str], str]) -> None:
    out = folder.python(here(one(blocks("python", run="store"))))
    terminals = [{"terminalId": key, "acquirerId": "A1", "isActive": True} for key in ("T1", "T2")]
    assert out.splitlines() == ["A1", str(terminals)]


def test_the_quickstarts_store(folder: Folder, here: Callable[[str], str]) -> None:
    lines = folder.python(here(one(blocks("python", run="quickstart")))).splitlines()
    assert lines[:2] == ["A1", "None"]
    assert lines[-1] == "0"


def test_reading_ones_own_writes(folder: Folder, kafka: str, unique: Callable[[str], str]) -> None:
    text = one(blocks("python", run="writing")).replace("localhost:9092", kafka)
    out = folder.python(text.replace('"tariffs"', f'"{unique("tariffs")}"'))
    assert out.splitlines() == ["0.5", "['gold', 'silver']"]


def test_under_asyncio(folder: Folder, here: Callable[[str], str]) -> None:
    assert folder.python(here(one(blocks("python", run="asyncio")))).splitlines() == ["A9"]


def test_a_service_with_probes(folder: Folder, here: Callable[[str], str]) -> None:
    text = here(one(blocks("python", run="embedded"))).replace("0.0.0.0:8081", "127.0.0.1:0")
    assert folder.python(text).splitlines() == ["A1"]


def test_a_token(here: Callable[[str], str], kafka: str) -> None:
    with GlobalStore(kafka, [here("terminal_acquirer")]) as store:
        exec(here(one(blocks("python", run="token"))), {"store": store})


def test_looking_from_a_shell(folder: Folder, here: Callable[[str], str]) -> None:
    out = folder.shell(here(one(blocks("sh", run="kafka"))))
    assert '"acquirerId": "A1"' in out
    assert here("terminal_acquirer") in out


@pytest.mark.parametrize("block", blocks("sh", run="serve"), ids=lambda block: block.name)
def test_serving(folder: Folder, here: Callable[[str], str], block: Block) -> None:
    place = f"127.0.0.1:{free_port()}"
    serve, *others = here(block.text).replace("127.0.0.1:8080", place).splitlines()
    folder.environment["COMPACTORY_LISTEN"] = place
    with background(folder, serve.split()) as process:
        deadline = time.monotonic() + 30
        while not answers(f"http://{place}/readyz"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for command in others:
            assert json.loads(folder.shell(command))["acquirerId"] == "A1"
    assert process.returncode == 0


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


@contextmanager
def background(folder: Folder, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, cwd=folder.path, env=folder.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize("block", blocks("sh", run="article"), ids=lambda block: f"{block.page.name} {len(block.text)}")
def test_the_articles_connector(
    folder: Folder, terminals: str, kafka: str, unique: Callable[[str], str], block: Block
) -> None:
    prefix = f"{unique('docs')}-"
    name = f"{prefix}connector.json"  # the connector's name is the file's: one for each test
    shutil.copy(ROOT / "examples" / "connectors" / "terminal_acquirer.json", folder.path / name)
    (folder.path / "secrets.properties").write_text(
        f"reference-data.db.url=jdbc:{terminals.replace('postgres@', '')}\nreference-data.db.user=postgres\n"
        f"reference-data.db.password=\nkafka.topic.prefix={prefix}\n"
    )
    text = block.text.replace("localhost:9092", kafka).replace("examples/connectors/terminal_acquirer.json", name)
    assert f"{prefix}terminal_acquirer" in folder.shell(text)
    if " --kafka " in text:
        with GlobalStore(kafka, [f"{prefix}terminal_acquirer"]) as store:
            assert len(store[f"{prefix}terminal_acquirer"]) == 5


@pytest.mark.parametrize("block", blocks("sh", run="adopt"), ids=lambda block: block.page.name)
def test_adopting(folder: Folder, terminals: str, block: Block) -> None:
    out = folder.shell(block.text.replace("postgresql://user@localhost/reference", terminals))
    assert "public.terminal_acquirer is adopted" in out


def test_the_quickstarts_connector(folder: Folder, terminals: str, kafka: str, unique: Callable[[str], str]) -> None:
    parts, prefix = urlsplit(terminals), f"{unique('docs')}-"
    connector = json.loads(one(blocks("json", run="connector"))) | {
        "name": prefix,
        "connection.url": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}?user={parts.username}",
        "topic.prefix": prefix,
    }
    (folder.path / "terminals.json").write_text(json.dumps(connector))
    folder.shell(one(blocks("sh", run="connector")).replace("localhost:9092", kafka))
    with psycopg.connect(terminals, autocommit=True) as connection:
        connection.execute("UPDATE terminal_acquirer SET is_active = false WHERE terminal_id = 'T1'")
    folder.shell(f"compactory source run --once terminals.json --kafka {kafka}")
    settings = one(blocks("toml", run="toml")).replace("localhost:9092", kafka)
    settings = settings.replace("terminal_acquirer]", f'terminal_acquirer]\ntopic = "{prefix}terminal_acquirer"')
    (folder.path / "compactory.toml").write_text(settings)
    assert json.loads(folder.shell("compactory get terminal_acquirer T2"))["terminalId"] == "T2"
    [found] = json.loads(folder.shell("compactory directories --json"))["directories"]
    assert found["entries"] == 4


def test_beside_the_demo(folder: Folder) -> None:
    with background(folder, ["compactory", "demo"]) as demo:
        deadline = time.monotonic() + 120
        while not (folder.path / ".compactory" / "demo.json").exists():
            assert demo.poll() is None, demo.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        url = json.loads((folder.path / ".compactory" / "demo.json").read_text())["http"]
        out = folder.shell(one(blocks("sh", run="demo")).replace("http://127.0.0.1:8080", url))
    assert out.count('"terminalId":"T42"') == 2
    assert '"terminalId": "T42"' in out
    assert "50,000" in out
    assert list(folder.path.iterdir()) == []
