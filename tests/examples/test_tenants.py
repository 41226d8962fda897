"""The tenants example on a real Kafka, by the commands of its README."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactory_cli.stack.port import free_port
from compactory_client import Client
from tests.processors.harness import committed
from tests.store.topics import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "tenants"

CREATE = """import sys; from compactory.kafka.client import Kafka
Kafka(sys.argv[2]).create_topic(sys.argv[5], config={"cleanup.policy": "compact"})"""
"""What ``kafka-topics.sh`` does, in a tenth of the time."""


class Example:
    """The example's programs, in a copy of its folder."""

    def __init__(self, kafka: str, path: Path) -> None:
        self.folder = shutil.copytree(EXAMPLE, path / "tenants")
        tool = path / "kafka-topics.sh"
        tool.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{CREATE}' \"$@\"\n")
        tool.chmod(0o755)
        self.ports = {"8080": str(free_port()), "8090": str(free_port())}
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}{os.pathsep}{os.environ['PATH']}",
            "COMPACTORY_KAFKA": kafka,
            "COMPACTORY_URL": f"http://127.0.0.1:{self.ports['8080']}",
            "PROVIDER_URL": f"http://127.0.0.1:{self.ports['8090']}",
        }
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, line: str) -> None:
        self.started[line] = subprocess.Popen(shlex.split(line), env=self.environment, cwd=self.folder)

    def shell(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, cwd=self.folder, capture_output=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout.decode()

    def readme(self) -> list[str]:
        """Run the README's commands; return what each of those printed that ended."""
        block = re.search(r"```bash\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
        assert block is not None
        said: list[str] = []
        for line in re.sub("|".join(self.ports), lambda found: self.ports[found[0]], block[1]).splitlines():
            if line.startswith(("cd ", "export ")):  # names the folder and the servers of this test
                continue
            if line.endswith(" &"):
                self.start(line[:-2])
            else:
                said.append(self.shell("bash", "-ec", line))
        return said

    def end(self) -> None:
        for process in self.started.values():
            process.terminate()
            process.wait(30)


@pytest.fixture
def example(kafka: str, tmp_path: Path) -> Iterator[Example]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    made = Example(kafka, tmp_path)
    yield made
    made.end()


@pytest.mark.proof
def test_every_command_of_the_readme_runs_and_each_tenant_has_one_account(example: Example, kafka: str) -> None:
    """Guarantee 19, with a processor that is killed on the way."""
    said = example.readme()
    assert json.loads(said[1])["account"] == "account-1"
    told = json.loads(said[3])
    assert (told["state"], told["value"]["error"]) == ("tenants_failed", "the provider wants to be paid")
    command = "compactory process run processor:register"
    with Client(example.environment["COMPACTORY_URL"]) as client:
        for number in range(3, 23):
            client.directory("tenants").put(f"t{number}", {"email": f"{number}@x", "plan": "large"})
            if number == 12:
                eventually(lambda: len(committed(kafka, "welcome-mails")) >= 3)
                example.started[command].kill()
                example.started[command].wait()
                example.start(command)
    eventually(lambda: len(committed(kafka, "welcome-mails")) == 21)
    booked = (example.folder / "accounts.book").read_text().splitlines()
    assert len({line.split()[1] for line in booked}) == len(booked) == 21
    assert [name for name, process in example.started.items() if process.poll() is not None] == []
