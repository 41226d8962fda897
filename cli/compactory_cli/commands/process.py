"""``compactory process``: call a function for each event of a topic; look at events that are not done."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import Flags, LogLevel, argument, command
from ..context.importing import imported
from ..context.stopping import stopping
from ..views.terminal import number, output, print_count, print_json, table
from .health import ListenOption, health_on, listen_on

if TYPE_CHECKING:
    from compactory.kafka.client import Kafka

__all__ = ["app"]

app = typer.Typer(name="process", help="Call a function for each event of a topic, once.", no_args_is_help=True)

Name = Annotated[str, argument(metavar="NAME", help="The processor's name.")]
Ids = Annotated[list[str] | None, argument(metavar="[ID]…", help="Ids of events; by default all that are set aside.")]


@app.command("run")
@command
def run(
    flags: Flags,
    processor: Annotated[str, argument(metavar="MODULE:NAME", help="Module and name of the `Processor`.")],
    listen: ListenOption = None,
) -> None:
    """Run a processor until SIGTERM or Ctrl-C. Processes of one name share the partitions."""
    from ..context.session import Problems, begin

    configuration = begin(flags, LogLevel.INFO)
    from compactory_connectors.processes import Processor, ProcessRunner, ProcessWorker

    problems = Problems()
    kafka = problems.of(configuration.kafka)
    place = problems.of(partial(listen_on, listen or configuration.worker_listen))
    found = problems.of(partial(imported, processor, Processor, "service:register"))
    problems.raise_any()
    assert kafka is not None
    assert found is not None
    runner = ProcessRunner(kafka, found)
    with stopping() as stop, health_on(place, configuration.tokens)([ProcessWorker(runner)]):
        runner.start()
        try:
            while not stop.wait(0.1) and not runner.wait(0.1):
                pass
        finally:
            runner.stop()
    events = runner.board.counters["events"]
    if flags.json:
        print_json({"processor": found.name, **runner.board.counters})
    else:
        output().print(f"[bold]{found.name}[/] stopped: {number(events)} events", highlight=False)


@app.command("failed")
@command
def failed(flags: Flags, name: Name) -> None:
    """List events that are not done: set aside, or waiting. Exit code 1 if one is set aside."""
    from compactory_connectors.processes.operators import kept_events

    found = kept_events(_kafka(flags), name)
    names = ("id", "key", "state", "attempts", "error")
    rows = [{field: getattr(parked, field) for field in names} for parked in found]
    if flags.json:
        print_json({"events": rows})
    elif not rows:
        output().print("every event that was read is done")
    else:
        from rich.markup import escape

        shown = table(*names, right=("attempts",))
        for row in rows:
            shown.add_row(*("–" if value is None else escape(str(value)) for value in row.values()))
        output().print(shown)
    if any(parked.state == "failed" for parked in found):
        raise typer.Exit(1)


@app.command("retry")
@command
def retry(flags: Flags, name: Name, ids: Ids = None) -> None:
    """Have events that were set aside tried again, by the processors that run."""
    from compactory_connectors.processes import operators

    _order(flags, operators.retry, "will be tried again", name, ids)


@app.command("drop")
@command
def drop(flags: Flags, name: Name, ids: Ids = None) -> None:
    """Forget events that were set aside."""
    from compactory_connectors.processes import operators

    _order(flags, operators.drop, "dropped", name, ids)


def _order(flags: Flags, act: Any, outcome: str, name: str, ids: list[str] | None) -> None:
    print_count(act(_kafka(flags), name, ids or ()), "event", outcome, as_json=flags.json)


def _kafka(flags: Flags) -> Kafka:
    from ..context.session import begin

    return begin(flags).kafka()
