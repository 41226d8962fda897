"""``compactory process``: calls a function for each event of a topic, and lists events that are not done."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import App, LogLevel, argument, flag
from ..context.session import all_of, begin, refuse
from ..context.worker import ListenOption, either, health_on, import_object, run_worker
from ..views.tables import Column, Table, print_tables
from ..views.terminal import answer, counted, fields, print_count
from .operators import By, Limit, add_pausing, show_lines

if TYPE_CHECKING:
    from compactory.kafka.client import Kafka

__all__ = ["app"]

app = App(name="process", help="Call a function for each event of a topic, once.")

_EVENTS = (Column("id"), Column("key"), Column("state"), Column("attempts", right=True), Column("error"))

Name = Annotated[str, argument("NAME", "The processor's name.")]
Ids = Annotated[list[str] | None, argument("[ID]…", "Ids of events.")]
All = Annotated[bool, flag("--all", "All events of the processor that were set aside.")]


@app.command("run")
def run_processor(
    processor: Annotated[str, argument("MODULE:NAME", "Module and name of the `Processor`.")],
    listen: ListenOption = None,
) -> None:
    """Run a processor until SIGTERM or Ctrl-C. Processes of one name share the partitions.

    Example: `compactory process run service:register`
    """
    configuration = begin(LogLevel.INFO)
    from compactory_connectors.processors import Processor, ProcessRunner, ProcessWorker

    kafka, health, imported_processor = all_of(
        configuration.kafka,
        partial(health_on, configuration, listen),
        partial(import_object, processor, Processor, "service:register"),
    )
    runner = ProcessRunner(kafka, imported_processor)
    run_worker(runner, ProcessWorker(runner), health, either(runner.wait))
    counters = {name: getattr(runner.board, name) for name in ("events", "retries", "failed")}
    message = f"[bold]{imported_processor.name}[/] stopped: {counted(counters['events'], 'event')}"
    answer({"processor": imported_processor.name, **counters}, message)


@app.command("failed")
def list_failed_events(name: Name) -> None:
    """List events that are not done: set aside, or waiting. Exit code 1 if one is set aside.

    With --json also the line of code where the last attempt failed.

    Example: `compactory process failed register`
    """
    from compactory_connectors.processors.operators import stored_events

    events = stored_events(begin().kafka(), name)
    print_tables(Table("events", events, _EVENTS, "every event that was read is done", _event_document))
    if any(event.state == "failed" for event in events):
        raise typer.Exit(1)


def _add_event_act(verb: str, outcome: str, text: str) -> None:
    @app.command(verb, help=f"{text}\n\nExample: `compactory process {verb} register --all`")
    def change_events(name: Name, ids: Ids = None, everything: All = False, by: By = None) -> None:
        from compactory_connectors.processors import operators

        if bool(ids) == everything:
            refuse("which events? give ids or --all")
        print_count(getattr(operators, verb)(begin().kafka(), name, ids or (), by=by), "event", outcome)


_add_event_act("retry", "will be tried again", "Try events that were set aside again, in the running processors.")
_add_event_act("drop", "dropped", "Drop events that were set aside.")


@app.command("log")
def show_processor_log(name: Name, limit: Limit = 100) -> None:
    """Show what operators have done to a processor in the last 90 days: who, what and how many.

    Example: `compactory process log register`
    """
    from compactory_connectors.processors import operators

    show_lines(operators.operator_log(begin().kafka(), name, limit))


def _event_document(event: Any) -> dict[str, Any]:
    """Return an event as JSON without its value, which may be confidential."""
    return fields(event, "id", "key", "state", "attempts", "error", "trace")


def _cluster() -> AbstractContextManager[Kafka]:
    return nullcontext(begin().kafka())


add_pausing(app, _cluster, "processor", "its processes keep their partitions. Running calls end normally.", "register")
