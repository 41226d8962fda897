"""The demo's servers, processes and files, and the steps that it prints."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import resources
from string import Template
from threading import Event
from typing import Any

import psycopg

from compactory.errors import Unreachable

from ..context.failure import StepFailed
from ..stack.broker import Broker
from ..stack.kafka import KafkaServer
from ..stack.port import answers, free_port
from ..stack.postgres import PostgresServer
from ..stack.process import Process
from ..views.terminal import output, print_json, say, seconds
from .home import Home

__all__ = ["TOPIC", "Ended", "Stage", "Step", "shipped_text"]

TOPIC = "terminal_acquirer"
_STEP_TIMEOUT = 30.0
_PORTS = {"http": 8080, "console": 8081, "source": None, "workers": None}

_FILES = ("terminal_acquirer.json", "ledger.json", "tpp.properties", "demo.toml")


class Ended(Exception):
    """A signal asks the demo to end."""


@dataclass
class Step:
    """A running step; its code sets ``result``, and ``seconds`` if it measures them itself."""

    result: str = ""
    seconds: float | None = None


class Stage:
    """Starts the processes of a demo whose servers have been started, waits for them and prints steps.

    Owned by the thread that started the servers. ``ending`` is set by a signal that asks the demo to end. ``lacks``
    says why the broker is no Apache Kafka.
    """

    def __init__(
        self,
        home: Home,
        postgres: PostgresServer,
        broker: KafkaServer | Broker,
        ending: Event,
        *,
        as_json: bool,
        lacks: str | None,
    ) -> None:
        self.home, self.postgres, self.broker, self.ending, self.as_json = home, postgres, broker, ending, as_json
        self.lacks = lacks
        self.urls = {name: f"http://127.0.0.1:{free_port(port)}" for name, port in _PORTS.items()}
        self.children: dict[str, Process] = {}

    def close(self) -> None:
        """End all processes but the servers, side by side."""
        self.broker.signal(signal.SIGCONT)
        for child in self.children.values():
            child.signal(signal.SIGTERM)
        for child in self.children.values():
            child.stop()

    def run_command(self, name: str, *arguments: str) -> None:
        """Start a command of ``compactory`` as a process with the demo's configuration alone."""
        config = str(self.home.folder / "demo.toml")
        self.run_module(name, "compactory_cli", *arguments, "--config", config)

    def run_module(self, name: str, module: str, *arguments: str) -> None:
        """Start a module as a process, without the settings of the environment."""
        environment = {name: "" for name in os.environ if name.startswith("COMPACTORY_")}  # empty counts as not set
        command = [sys.executable, "-m", module, *arguments]
        log = self.home.scratch / f"{name}.log"
        self.children[name] = Process(name, command, log=log, environment=environment)
        self.children[name].start()

    def is_listening(self, name: str) -> bool:
        """Return True if the process of this name accepts connections."""
        return answers(int(self.urls[name].rpartition(":")[2]))

    def write_files(self) -> None:
        """Write connectors, placeholders and configuration for the processes and for the user."""
        values = {
            "folder": self.home.folder,
            "kafka": self.broker.address,
            "postgres": self.postgres.url(),
            "database": f"jdbc:postgresql://127.0.0.1:{self.postgres.port}/postgres",
            "servers": ", ".join(f'"{url}"' for name, url in self.urls.items() if name != "console"),
        }
        for name in _FILES:
            (self.home.folder / name).write_text(shipped_text(name, **values), encoding="utf-8")

    def connector(self) -> tuple[str, str, str]:
        """Return the connector's file and its --provider."""
        folder = self.home.folder.resolve()
        return f"{folder}/terminal_acquirer.json", "--provider", f"tpp={folder}/tpp.properties"

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection in autocommit. Raises Unreachable if Postgres can't be reached."""
        try:
            with psycopg.connect(self.postgres.url(), autocommit=True) as connection:
                yield connection
        except psycopg.OperationalError as error:
            raise Unreachable("Postgres", f"{self.postgres.url()} was not reached: {error}") from error

    def wait(self, is_reached: Callable[[], bool], otherwise: str, pause: float = 0.0005) -> None:
        """Wait until ``is_reached()`` returns True, checking every ``pause`` seconds.

        Raises StepFailed after 30 seconds, Unreachable if a process has ended, Ended after a signal.
        """
        deadline = time.monotonic() + _STEP_TIMEOUT
        while not is_reached():
            if self.ending.is_set():
                raise Ended
            for child in self.children.values():
                if not child.running:
                    raise Unreachable(child.name, f"{child.name} has ended:\n{child.tail()}")
            if time.monotonic() > deadline:
                raise StepFailed(f"{otherwise} after {_STEP_TIMEOUT:.0f} s")
            time.sleep(pause)

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[Step]:
        """Show ``doing`` while the block runs, then result and duration, also if it fails. Raises Ended."""
        if self.ending.is_set():
            raise Ended
        step, began, mark = Step(), time.perf_counter(), "[red]✗[/]"
        try:
            with nullcontext() if self.as_json else output().status(f"{doing} …"):
                yield step
            mark = "[green]✓[/]"
        finally:
            elapsed = step.seconds if step.seconds is not None else time.perf_counter() - began
            document = {"step": name, "ok": "green" in mark, "seconds": round(elapsed, 4), "result": step.result}
            if not self.ending.is_set():
                self.tell(document, f" {mark} [bold]{name:<9}[/] {seconds(elapsed):>8}   {step.result}")

    def tell(self, document: Mapping[str, Any], text: str) -> None:
        """Print the document for programs, or the text (if any) for people."""
        if self.as_json:
            print_json(document)
        elif text:
            say(text)

    def state(self) -> dict[str, Any]:
        """Return the contents of demo.json."""
        pids = {"demo": os.getpid(), "postgres": self.postgres.pid, "kafka": self.broker.pid}
        pids |= {name: child.pid for name, child in self.children.items()}
        stopped = {"postgres": not self.postgres.running, "kafka": self.broker.is_paused}
        return {
            "postgres": self.postgres.url(),
            "kafka": self.broker.address,
            "http": self.urls["http"],
            "console": self.urls["console"],
            "topic": TOPIC,
            "pids": {name: pid for name, pid in pids.items() if pid is not None},
            "stopped": [name for name, is_stopped in stopped.items() if is_stopped],
        }

    def stay(self, restart: Event) -> None:
        """Keep demo.json up to date and start Postgres when asked, until a signal comes."""
        state = self.state()
        while not self.ending.wait(0.1):
            if restart.is_set() and not self.postgres.running:
                self.postgres.start()
            restart.clear()
            previous, state = state, self.state()
            if state == previous:
                continue
            self.home.announce(state)
            for name in sorted(previous["pids"].keys() - state["pids"].keys()):
                text = f" [yellow]![/] {name} (pid {previous['pids'][name]}) has ended; the others go on"
                self.tell({"ended": name, "pid": previous["pids"][name]}, text)


def shipped_text(name: str, **values: object) -> str:
    """Return a file of this package, with the values in place of ``${NAME}``."""
    text = (resources.files("compactory_cli.demo") / name).read_text(encoding="utf-8")
    return Template(text).safe_substitute(values) if values else text
