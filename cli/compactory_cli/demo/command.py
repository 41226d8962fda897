"""``compactory demo``: starts all parts, runs until a signal ends it, leaves nothing behind."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..context.flags import Flags, argument, command, flag

if TYPE_CHECKING:
    from .narrator import Narrator
    from .servers import Servers
    from .stage import Stage

__all__ = ["app"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
_AGAIN = 0.5  # seconds; Python drops what a signal's handler raises while a destructor or a weakref's callback runs

app = typer.Typer(name="demo")

_Server = Annotated[Literal["postgres", "kafka"], argument("postgres|kafka", "Name of the server.")]


@app.callback(invoke_without_command=True)
@command
def demo(
    flags: Flags,
    context: typer.Context,
    check: Annotated[bool, flag("--check", "Run all steps and end; exit code 1 if a step fails.")] = False,
) -> None:
    """Show the whole path: Postgres, broker, 50,000 terminals, source, store and HTTP, without any setup.

    Writes the addresses to .compactory/demo.json. Stays up until Ctrl-C and leaves nothing behind.
    """
    if context.invoked_subcommand is None:
        with suppress(_Asked), _stoppable():
            _demo(flags, check=check)


@app.command("stop")
@command
def stop(flags: Flags, server: _Server) -> None:
    """Stop a server of the demo that runs in this folder: Postgres ends, the broker is paused."""
    _send_order(flags, "stop", server)


@app.command("start")
@command
def start(flags: Flags, server: _Server) -> None:
    """Start a server of the demo again."""
    _send_order(flags, "start", server)


def _send_order(flags: Flags, action: str, server: str) -> None:
    from ..views.terminal import answer, seconds
    from .home import Home
    from .orders import give_order

    document = give_order(Home(), action, server)
    answer(document, f"{document['result']} ({seconds(document['seconds'])})", as_json=flags.json)


class _Asked(BaseException):
    """A signal asks the demo to end."""


def _demo(flags: Flags, *, check: bool) -> None:
    from .home import Home
    from .narrator import Narrator

    began = time.perf_counter()
    narrator = Narrator(as_json=flags.json)
    home = Home()
    with ExitStack() as cleaning:
        cleaning.callback(home.remove)
        home.claim()  # before anything slow: a demo.json that a killed demo left is gone at once
        narrator.say(
            "[bold]compactory demo[/]: a committed row becomes a lookup, and stays one while Postgres is down\n"
        )
        logging.basicConfig(filename=home.scratch / "store.log", level=logging.INFO)
        from .servers import Servers

        servers = Servers(home.scratch)
        cleaning.callback(servers.close)
        cleaning.callback(_ignore_signals)  # nothing may cut the cleaning short
        servers.launch()
        from .stage import Stage  # while they start

        stage = Stage(home, servers)
        cleaning.callback(stage.close)
        cleaning.callback(_ignore_signals)
        if check:
            _check(stage, servers, narrator)
        else:
            _set_up(stage, servers, narrator)
            _stay(stage, narrator, began)


def _check(stage: Stage, servers: Servers, narrator: Narrator) -> None:
    """Run every step. Raises StepFailed if a step fails."""
    from compactory.errors import CompactoryError

    from ..context.failure import StepFailed
    from .story import tell

    try:
        _set_up(stage, servers, narrator)
        narrator.say()
        tell(stage, narrator)
    except CompactoryError as error:
        raise StepFailed(str(error)) from error


def _stay(stage: Stage, narrator: Narrator, began: float) -> None:
    """Print what runs, show a change, and take orders until a signal comes."""
    from .invitation import invitation
    from .orders import carry_out_orders
    from .story import prove

    stage.home.announce(stage.describe())
    startup_seconds = time.perf_counter() - began
    narrator.tell({"ready": stage.describe(), "seconds": round(startup_seconds, 4)}, None)
    prove(stage, narrator)
    narrator.say(invitation(stage, startup_seconds))
    carry_out_orders(stage, narrator)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Raise an exception in the block at SIGTERM, Ctrl-C and the end of the terminal."""
    previous_handlers = {sign: signal.getsignal(sign) for sign in _SIGNALS}

    def ask(_sign: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        raise _Asked

    for sign, handler in previous_handlers.items():
        if handler is not signal.SIG_IGN or sign is not signal.SIGHUP:  # nohup
            signal.signal(sign, ask)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for sign, handler in previous_handlers.items():
            signal.signal(sign, handler)


def _ignore_signals() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    for sign in _SIGNALS:
        signal.signal(sign, signal.SIG_IGN)


def _set_up(stage: Stage, servers: Servers, narrator: Narrator) -> None:
    from .stage import ROWS, TOPIC

    with narrator.step("kafka", "starting the broker") as step:
        servers.start_broker()
        stage.write_files()
        stage.create_topic()
        stage.start_http()
        step.result = f"broker on {stage.broker.address}, memory only; topic {TOPIC}"
    with narrator.step("postgres", "starting Postgres") as step:
        servers.postgres.start()
        step.result = stage.postgres.url()
    with narrator.step("table", "filling the table") as step:
        stage.create_table()
        stage.start_source()
        stage.fill_table()
        step.result = f"public.{TOPIC}: {ROWS:,} rows, adopted"
    with narrator.step("http", "loading the topic") as step:
        stage.wait_for_http()
        step.result = f"{stage.client.url}: the source has sent every row, the server holds it"
    with narrator.step("store", "loading a store") as step:
        stage.open_store()
        step.result = f"in this process: the start of a store with {ROWS:,} entries"
