"""Runs the services of docker-compose.yml as processes: the same commands, with hosts, ports and paths replaced.

Postgres and Kafka are started by the test, with the settings of the file; everything else is supervised here: order
and conditions of ``depends_on``, health checks, the image's environment, SIGTERM at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from compactory_cli.stack.port import free_port
from tests.deploy.image import ROOT, dockerfile
from tests.source.workload import wait_until

BIN = Path(sys.executable).parent
_FOLDERS = ("/run/secrets/", "/etc/compactory/", "/opt/reference/")


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


@dataclass
class Composition:
    """``replaced`` maps what stands in the file to what it is here; ``home`` holds the containers' file systems."""

    home: Path
    replaced: Mapping[str, str]
    services: dict[str, Any] = field(default_factory=lambda: compose()["services"])
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def up(self, name: str) -> None:
        """Start a service after those it depends on."""
        for other, condition in self.services[name].get("depends_on", {}).items():
            if other not in self.running and other not in self.finished and "build" in self.services[other]:
                self.up(other)
            self._await(other, condition["condition"])
        self.ports[name] = free_port()
        _, image = dockerfile()
        service = self.services[name]
        log = (self.home / f"{name}.log").open("w")
        self.running[name] = subprocess.Popen(
            [BIN / word if word == "compactory" else word for word in image.words("ENTRYPOINT")]
            + [self._local(name, word) for word in service.get("command", image.words("CMD"))],
            cwd=self.home / name / image.last("WORKDIR").lstrip("/"),
            env=self._environment(name, image.environment()),
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        log.close()

    def healthy(self, name: str) -> bool:
        """Run the service's health check, as the engine would do within its container."""
        command = [self._local(name, word) for word in self.services[name]["healthcheck"]["test"]]
        assert command[0] == "CMD"
        return self._check(name, command[1:])

    def live(self, name: str) -> bool:
        """Run the image's own health check."""
        return self._check(name, [self._local(name, word) for word in dockerfile()[-1].health()])

    def place(self) -> None:
        """Put configs and secrets where the file says."""
        document = compose()
        for name, service in self.services.items():
            (self.home / name / "etc" / "compactory").mkdir(parents=True)
            for config in service.get("configs", ()):
                text = (ROOT / document["configs"][config["source"]]["file"]).read_text()
                self._write(name, config["target"], text)
            for secret in service.get("secrets", ()):
                given = Path(document["secrets"][secret]["file"]).name
                self._write(name, f"/run/secrets/{secret}", (self.home / "secrets" / given).read_text())

    def stop(self, name: str) -> int:
        """Stop it as the engine does; killed after its grace period."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        grace = float(str(self.services[name].get("stop_grace_period", "10s")).removesuffix("s"))
        return process.wait(grace)

    def kill(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()

    def script(self, name: str, target: str) -> str:
        """The text of a mounted file, with paths replaced."""
        return self._local(name, (self.home / name / target.lstrip("/")).read_text())

    def _await(self, name: str, condition: str) -> None:
        if condition == "service_completed_successfully":
            if name in self.running:
                self.finished[name] = self.running.pop(name).wait(60)
            assert self.finished[name] == 0, self.log(name)
            return
        assert condition == "service_healthy"
        wait_until(lambda: self.healthy(name), 60, f"health of {name}")

    def _check(self, name: str, command: list[str]) -> bool:
        if name in self.running:
            assert self.running[name].poll() is None, self.log(name)
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0

    def _environment(self, name: str, image: Mapping[str, str]) -> dict[str, str]:
        """The image's and the service's variables, and nothing of ours."""
        given = {**image, **self.services[name].get("environment", {})}
        return {
            variable: self._local(name, value).replace("$PATH", os.environ["PATH"]) for variable, value in given.items()
        }

    def _local(self, name: str, text: str) -> str:
        replaced = {**self.replaced, ":8080": f":{self.ports.get(name, 0)}"}
        replaced |= {
            folder: f"{self.home / name}{folder}" for folder in ("/run/secrets/", "/etc/compactory/", "/opt/reference/")
        }
        for written, here in replaced.items():
            text = text.replace(written, here)
        return text

    def _write(self, name: str, target: str, text: str) -> None:
        file = self.home / name / target.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        for written, here in self.replaced.items():
            text = text.replace(written, here)
        file.write_text(text)
