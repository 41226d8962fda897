"""The blocks that say ``<!-- run: … -->`` are run, on the run's Kafka and Postgres."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import psycopg
import pytest
from confluent_kafka import Producer

from compactory import GlobalStore
from compactory.kafka.client import Kafka
from compactory_cli.stack.port import free_port
from compactory_cli.stack.postgres import embedded_binaries
from compactory_sql import read
from tests.docs.pages import ROOT, Block, blocks

BIN = Path(sys.executable).parent


class Folder:
    """A working folder in which blocks are run, with nothing of ours in the environment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ours = ("COMPACTORY_", "TPP_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.environment["PATH"] = os.pathsep.join([str(BIN), os.environ["PATH"], str(embedded_binaries())])

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


def test_reading_ones_own_writes(folder: Folder, kafka: str, unique: Callable[[str], str]) -> None:
    text = one(blocks("python", run="writing")).replace("localhost:9092", kafka)
    out = folder.python(text.replace('"tariffs"', f'"{unique("tariffs")}"'))
    assert out.splitlines() == ["0.5", "['gold', 'silver']"]


def test_under_asyncio(folder: Folder, here: Callable[[str], str]) -> None:
    assert folder.python(here(one(blocks("python", run="asyncio")))).splitlines() == ["A9"]


def test_a_projection(folder: Folder) -> None:
    assert folder.python(one(blocks("python", run="projection"))).splitlines() == ["1"]


def test_a_service_with_probes(folder: Folder, here: Callable[[str], str]) -> None:
    text = here(one(blocks("python", run="embedded"))).replace("0.0.0.0:8081", "127.0.0.1:0")
    assert folder.python(text).splitlines() == ["A1"]


def test_services_and_their_tests(folder: Folder) -> None:
    pages = {"test_testing.py": blocks("python", run="testing"), "test_fastapi.py": blocks("python", run="fastapi")}
    files = [*pages]
    for file, page in pages.items():
        (folder.path / file).write_text("\n".join(block.text for block in page))
    folder.run([sys.executable, "-m", "mypy", "--strict", f"--cache-dir={ROOT / 'build' / 'mypy'}", *files])
    folder.environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    out = folder.run([sys.executable, "-m", "pytest", "-v", "-p", "compactory_cli.pytest_plugin", *files])
    assert all(f"{file}::" in out for file in files)


def test_a_token(here: Callable[[str], str], kafka: str) -> None:
    with GlobalStore(kafka, [here("terminal_acquirer")]) as store:
        exec(here(one(blocks("python", run="token"))), {"store": store})


_FILES = {"toml": "compactory.toml", "sql": "tenants.sql", "json": "tenants.json"}
_EXPORTS = re.compile(r"^export (\w+)=(\S+)$", re.MULTILINE)
_STAYS = re.compile(r"^compactory (?:serve|source run) .*--listen (\S+)$", re.MULTILINE)


@pytest.mark.proof
def test_the_quickstart_from_its_first_block_to_its_last(
    folder: Folder, database: str, kafka: str, unique: Callable[[str], str]
) -> None:
    parts, name = urlsplit(database), unique("tenants").replace("-", "_")
    places = {
        "jdbc:postgresql://localhost:5432/reference?user=postgres": (
            f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}?user={parts.username}"
        ),
        "postgresql://postgres@localhost:5432/reference": database,
        "localhost:9092": kafka,
        "127.0.0.1:8083": f"127.0.0.1:{free_port()}",
        "127.0.0.1:8082": f"127.0.0.1:{free_port()}",
        "tenants": name,
    }
    told = ""
    with ExitStack() as running:
        for block in blocks("toml", "sql", "json", "sh", "python", run="quickstart"):
            text = reduce(lambda text, place: text.replace(*place), places.items(), block.text)
            folder.environment |= dict(_EXPORTS.findall(text))  # a reader goes on in the same terminals
            if block.language in _FILES:
                (folder.path / _FILES[block.language].replace("tenants", name)).write_text(text)
            elif block.language == "python":
                told += folder.python(text)
            elif stays := _STAYS.search(text):
                process = running.enter_context(background(folder, ["bash", "-euc", in_its_place(text)]))
                await_ready(process, f"http://{stays[1]}/readyz")
            else:
                told += folder.shell(text)
    assert "is adopted" in told
    assert told.count(f"{name}  equal") == 2
    assert '"plan": "gold"' in told  # compactory get
    assert "\ngold\nNone\n2\n" in told  # the store
    assert '"plan":"silver"' in told.splitlines()[-1]  # compactory serve, after the update


def in_its_place(text: str) -> str:
    """The block whose last command takes the shell's place, so that it gets our signals."""
    *others, last = text.splitlines()
    return "\n".join([*others, f"exec {last}"])


def await_ready(process: subprocess.Popen[str], url: str) -> None:
    deadline = time.monotonic() + 60
    while not answers(url):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
    secrets = one(blocks("properties", run="article")).replace("topic.prefix=", f"topic.prefix={prefix}")
    secrets = secrets.replace("postgresql://localhost:5432/reference", terminals.replace("postgres@", ""))
    (folder.path / "secrets.properties").write_text(secrets)
    text = block.text.replace("localhost:9092", kafka).replace("examples/connectors/terminal_acquirer.json", name)
    assert f"{prefix}terminal_acquirer" in folder.shell(text)
    if " --kafka " in text:
        with GlobalStore(kafka, [f"{prefix}terminal_acquirer"]) as store:
            assert len(store[f"{prefix}terminal_acquirer"]) == 5


def test_adopting(folder: Folder, terminals: str) -> None:
    out = folder.shell(one(blocks("sh", run="adopt")).replace("postgresql://user@localhost/reference", terminals))
    assert "public.terminal_acquirer is adopted" in out
