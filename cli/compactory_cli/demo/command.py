"""``compactory demo``: runs the story, and stops and starts its servers by signals to the processes in demo.json."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Event
from typing import Annotated, Literal

import typer

from ..context.flags import COMMON_OPTIONS, App, argument, flag
from ..views.terminal import wants_json

__all__ = ["app"]

_KAFKA_PORT = 19092
_TIMEOUT = 60.0  # seconds that a start may take, as that of Postgres may on a slow disk
_ORDERS = {
    "stop postgres": (signal.SIGINT, "postgres", "Postgres is down; lookups go on"),
    "start postgres": (signal.SIGUSR1, "demo", "Postgres is back; the source comes back by itself"),
    "stop kafka": (
        signal.SIGSTOP,
        "kafka",
        "the broker is paused (SIGSTOP) and keeps its topics: clients see an outage, lookups go on",
    ),
    "start kafka": (signal.SIGCONT, "kafka", "the broker runs again, with all its topics"),
}
"""The signal for each order, the process that gets it, and the result."""

app = App(name="demo", no_args_is_help=False)

_Server = Annotated[Literal["postgres", "kafka"], argument("postgres|kafka", "Name of the server.")]


@app.callback(invoke_without_command=True, epilog=COMMON_OPTIONS)
def demo(
    context: typer.Context,
    check: Annotated[bool, flag("--check", "Run all steps and end; exit code 1 if a step fails.")] = False,
) -> None:
    """Show the whole path without any setup: 50,000 rows in Postgres, source, Kafka, store and HTTP.

    Then a payment goes through outbox, processor, sink and a job. Writes the addresses to .compactory/demo.json.
    Stays up until Ctrl-C and leaves nothing behind. The broker is an Apache Kafka where Java 17 and Maven are.

    Example: `compactory demo --check`
    """
    if context.invoked_subcommand is None:
        _run_demo(check=check)


@app.command("stop")
def stop(server: _Server) -> None:
    """Stop a server of the demo that runs in this folder: Postgres ends, the broker is paused.

    Example: `compactory demo stop postgres`
    """
    _signal_server("stop", server)


@app.command("start")
def start(server: _Server) -> None:
    """Start a server of the demo again.

    Example: `compactory demo start postgres`
    """
    _signal_server("start", server)


def _run_demo(*, check: bool) -> None:
    from ..stack.broker import new_broker
    from ..stack.maven import kafka_folder, kafka_lacks
    from ..stack.port import free_port
    from ..stack.postgres import PostgresServer
    from ..views.terminal import warn
    from .home import Home

    began = time.perf_counter()
    home = Home()
    with _ending() as ending, ExitStack() as cleaning:
        cleaning.callback(home.remove)
        home.claim()  # before anything slow: a demo.json that a killed demo left is gone at once
        logging.basicConfig(filename=home.scratch / "store.log", level=logging.INFO)
        postgres = PostgresServer(home.scratch / "postgres", settings={"fsync": "off"})
        cleaning.callback(postgres.stop)
        postgres.prepare()
        if kafka_lacks() is None and not kafka_folder().exists():
            warn(f"the first start fetches Apache Kafka (55 MB) with Maven into {kafka_folder()}: wait a minute")
        broker, lacks = new_broker(home.scratch / "broker", free_port(_KAFKA_PORT))
        cleaning.callback(broker.kill)
        broker.launch()
        from .stage import Ended, Stage
        from .story import Demo  # slow: while the servers start

        stage = Stage(home, postgres, broker, ending, as_json=wants_json(), lacks=lacks)
        story = Demo(stage)
        cleaning.callback(stage.close)
        cleaning.callback(story.close)
        with suppress(Ended):
            story.check(began) if check else story.show(began)


@contextmanager
def _ending() -> Iterator[Event]:
    """Yield an event that Ctrl-C, SIGTERM and the end of the terminal set. Nothing cuts the cleaning short."""
    ending = Event()
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
        signals.remove(signal.SIGHUP)
    previous_handlers = {sign: signal.signal(sign, lambda _sign, _frame: ending.set()) for sign in signals}
    try:
        yield ending
    finally:
        for sign, handler in previous_handlers.items():
            signal.signal(sign, handler)


def _signal_server(action: Literal["stop", "start"], server: str) -> None:
    """Send the signal to the server, or to the demo to start Postgres again; wait until demo.json has the result."""
    from compactory.errors import Unreachable

    from ..views.terminal import answer, seconds
    from .home import Home

    began = time.perf_counter()
    home = Home()
    state = home.state()
    if not state:
        owner, folder = home.owner(), home.folder.resolve()
        raise Unreachable(
            "demo",
            f"no demo runs in this folder ({folder}); start one with: compactory demo"
            if owner is None
            else f"the demo (pid {owner}) takes no commands: it is starting, ending, or runs its steps (--check)",
        )
    sign, name, result = _ORDERS[f"{action} {server}"]
    if (server in state["stopped"]) != (action == "stop"):
        os.kill(state["pids"][name], sign)
    while (server in state["stopped"]) != (action == "stop"):
        if not (state := home.state()) or time.perf_counter() - began > _TIMEOUT:
            raise Unreachable("demo", f"the demo could not {action} {server}; see what it prints")
        time.sleep(0.1)
    elapsed = round(time.perf_counter() - began, 4)
    document = {"action": action, "server": server, "result": result, "seconds": elapsed}
    answer(document, f"{result} ({seconds(elapsed)})")
