"""The text that the demo prints once it runs: addresses, and commands to try."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ..stack.postgres import embedded_binaries
from ..views.terminal import seconds
from .stage import TOPIC, Stage

__all__ = ["invitation"]


def invitation(stage: Stage, startup_seconds: float) -> str:
    """Return the text, with markup."""
    folder, url, program = stage.home.folder, stage.client.url, _program()
    look = f"curl -i {url}{stage.client.path('T42')}"
    change = "UPDATE terminal_acquirer SET acquirer_id = 'A7' WHERE terminal_id = 'T42'"
    configured = f"{program} --config {folder}/demo.toml"
    return f"""
{_running(stage)}

Up in {seconds(startup_seconds)}; {folder}/demo.json says what runs where, {stage.home.scratch}/*.log what they log.
Try, in another terminal in this folder:

  [cyan]{look}[/]
  [cyan]{_psql()} {stage.postgres.url()} -c "{change}"[/]

  [cyan]{program} demo stop postgres[/]    # look again: lookups go on
  [cyan]{program} demo start postgres[/]   # change again: the source comes back by itself
  [cyan]{program} demo stop kafka[/]       # it hangs, which keeps its topics; lookups go on
  [cyan]{program} demo start kafka[/]

  [cyan]curl {url}/v1/directories[/]
  [cyan]curl {url}/v1/errors[/]
  [cyan]{configured} get {TOPIC} T42[/]
  [cyan]{configured} source validate {folder}/{TOPIC}.json --provider tpp={folder}/tpp.properties[/]

Ctrl-C ends it all and leaves nothing behind."""


def _running(stage: Stage) -> str:
    pids = stage.pids
    rows = (
        ("postgres", f"{stage.postgres.url()}, table {TOPIC}"),
        ("kafka", f"{stage.broker.address}, topic {TOPIC}; memory only"),
        ("source", f"compactory source run {TOPIC}.json: from the table to the topic"),
        ("http", f"{stage.client.url}: compactory serve, the topic in memory"),
        ("demo", "this process, with a store of its own as a service has it"),
    )
    return "\n".join(f"  [bold]{name:<9}[/] pid {pids.get(name, '–'):<9} {description}" for name, description in rows)


def _program() -> str:
    """Return the command that runs ``compactory`` in this folder."""
    if shutil.which("compactory"):
        return "compactory"
    script = Path(sys.executable).with_name("compactory")
    if not script.exists():
        return f"{sys.executable} -m compactory_cli"
    return _relative(script)


def _psql() -> str:
    """Return the command of psql: the installed one, else that of the embedded Postgres."""
    embedded = embedded_binaries() / "psql"
    return "psql" if shutil.which("psql") or not embedded.exists() else _relative(embedded)


def _relative(path: Path) -> str:
    """Return the path relative to the current folder if it is below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
