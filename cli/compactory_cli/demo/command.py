"""``compactory demo``: starts the stage, tells the story, stays up until Ctrl-C or SIGTERM, leaves nothing behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ..flags import Flags, command

if TYPE_CHECKING:
    from .narrator import Narrator
    from .stage import Stage

__all__ = ["demo"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@command
def demo(
    flags: Flags,
    check: Annotated[bool, typer.Option("--check", help="Tell the story and end; exit 1 if a step fails.")] = False,
) -> None:
    """Show the whole path: Postgres, broker, 50,000 terminals, source and store, with nothing set up before.

    Says in .compactory/demo.json what runs where. Stays up until Ctrl-C and leaves nothing behind.
    """
    with suppress(_Asked), _stoppable():
        _demo(flags, check=check)


class _Asked(BaseException):
    """Somebody asked the demo to end."""


def _demo(flags: Flags, *, check: bool) -> None:
    from .home import Home
    from .narrator import Narrator

    began = time.perf_counter()
    narrator = Narrator(as_json=flags.json)
    home = Home()
    with ExitStack() as cleaning:
        cleaning.callback(home.remove)
        home.claim()  # before anything slow: a demo.json that a killed demo left is gone at once
        from .stage import Stage

        stage = Stage(home)
        cleaning.callback(stage.close)
        cleaning.callback(_ignore_signals)  # runs first: nothing may cut the cleaning short
        _set_up(stage, narrator)
        _story(stage, narrator)
        if not check:
            home.announce(stage.describe())
            _invite(stage, narrator, time.perf_counter() - began)
            _stay(stage, narrator)


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM, Ctrl-C and a terminal that goes away end the demo in order."""
    before = {sign: signal.getsignal(sign) for sign in _SIGNALS}

    def ask(_sign: int, _frame: FrameType | None) -> None:
        raise _Asked

    for sign, handler in before.items():
        if handler is not signal.SIG_IGN or sign is not signal.SIGHUP:  # nohup
            signal.signal(sign, ask)
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def _ignore_signals() -> None:
    for sign in _SIGNALS:
        signal.signal(sign, signal.SIG_IGN)


def _set_up(stage: Stage, narrator: Narrator) -> None:
    from .stage import ROWS, TOPIC

    narrator.say("[bold]compactory demo[/]: a committed row becomes a lookup, and stays one while Postgres is down\n")
    with narrator.step("kafka", "starting the broker") as step:
        stage.broker.start()
        step.told = f"broker on {stage.broker.address}, memory only"
    with narrator.step("postgres", "starting Postgres") as step:
        stage.postgres.start()
        step.told = stage.postgres.url()
    with narrator.step("table", "filling the table") as step:
        stage.write_files()
        stage.create_table()
        stage.start_source()
        stage.fill_table()
        step.told = f"public.{TOPIC}: {ROWS:,} rows, adopted"
    with narrator.step("source", "loading the topic") as step:
        stage.wait_for_topic()
        stage.open_store()
        step.told = f"terminal_acquirer.json → topic {TOPIC}: every row is there"
    with narrator.step("store", "loading a second store") as step:
        step.took = stage.time_a_start()
        step.told = f"what a service waits at its start for {ROWS:,} entries"


def _story(stage: Stage, narrator: Narrator) -> None:
    from .story import tell

    narrator.say()
    tell(stage, narrator)


def _invite(stage: Stage, narrator: Narrator, took: float) -> None:
    folder, database = stage.home.folder, stage.postgres.url()
    change = "UPDATE terminal_acquirer SET acquirer_id = 'A7' WHERE terminal_id = 'T42'"
    narrator.say(
        f"""
Up in {took:.1f} s; {folder}/demo.json says what runs where. Try, in another terminal in this folder:

  [cyan]export COMPACTORY_CONFIG={folder}/demo.toml[/]
  [cyan]compactory get terminal_acquirer T42[/]
  [cyan]compactory directories[/]
  [cyan]compactory sql status[/]
  [cyan]compactory source validate {folder}/terminal_acquirer.json --provider tpp={folder}/tpp.properties[/]
  [cyan]psql {database} -c "{change}"[/]

Ctrl-C ends it all and leaves nothing behind."""
    )


def _stay(stage: Stage, narrator: Narrator) -> None:
    """Stay up; say of every process when it ends."""
    running = stage.pids
    while True:
        time.sleep(0.5)
        now = stage.pids
        for name in sorted(running.keys() - now.keys()):
            narrator.tell_end(name, running[name])
        running = now
