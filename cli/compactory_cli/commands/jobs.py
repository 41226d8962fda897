"""``compactory jobs``: runs, lists, retries, cancels and discards jobs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.database import connected, give_roles
from ..context.flags import Flags, LogLevel, argument, command, flag, option
from ..context.session import all_of, begin, refuse
from ..context.worker import ListenOption, health_on, import_object, run_worker
from ..views.terminal import answer, marked, number, print_count, print_json, print_table, seconds, write

if TYPE_CHECKING:
    import psycopg

    from compactory_connectors.jobs.operators import JobRow

__all__ = ["app"]

app = typer.Typer(name="jobs", help="Run the jobs that transactions have enqueued.", no_args_is_help=True)

Ids = Annotated[list[int] | None, argument("[ID]…", "Ids of jobs.")]
OneType = Annotated[str | None, option("--type", "TYPE", "Only jobs of this type.")]
OneGroup = Annotated[str | None, option("--group", "NAME", "Only jobs of this group.")]
All = Annotated[bool, flag("--all", "Jobs of every type.")]


@app.command("run")
@command
def run_jobs(
    flags: Flags,
    jobs: Annotated[str, argument("MODULE:JOBS", "Module and name of the `Jobs` with the handlers.")],
    concurrency: Annotated[int, option("--concurrency", "N", "Jobs that run at the same time.", min=1)] = 30,
    topic: Annotated[
        str | None, option("--topic", "NAME", "Run the jobs of the partitions of this topic that the group assigns.")
    ] = None,
    group_id: Annotated[str | None, option("--group-id", "ID", "Consumer group of the executors.")] = None,
    listen: ListenOption = None,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C. Any number of executors may run at the same time."""
    configuration = begin(flags, LogLevel.INFO)
    from compactory.errors import Unreachable
    from compactory_connectors.jobs import JobExecutor, Jobs
    from compactory_connectors.jobs.worker import JobsWorker

    postgres, kafka, health, handlers = all_of(
        configuration.postgres,
        lambda: configuration.kafka() if topic or group_id else None,
        partial(health_on, configuration, listen),
        partial(import_object, jobs, Jobs, "service:jobs"),
    )
    executor = JobExecutor(postgres, handlers, concurrency, kafka=kafka, group_id=group_id, topic=topic)
    ended = run_worker(executor, JobsWorker(executor), health)
    runs = executor.board.picture()["runs"]
    totals = ", ".join(f"{name}: {number(sum(counts.values()))}" for name, counts in sorted(runs.items()))
    answer({"runs": runs}, f"[bold]jobs[/] stopped: {totals or 'nothing was run'}", as_json=flags.json)
    if not ended:
        raise Unreachable("a handler", "a handler did not end in time; its job is taken over within 10 s")


@app.command("status")
@command
def show_jobs_status(flags: Flags) -> None:
    """Show waiting jobs, their age, and running executors."""
    from compactory_connectors.jobs.status import executor_statuses, type_statuses

    with _connect_to_jobs(flags) as connection:
        types, executors = type_statuses(connection), executor_statuses(connection)
    if flags.json:
        print_json({"types": [asdict(item) for item in types], "executors": [asdict(item) for item in executors]})
        return
    print_table(
        ("type", "state", "jobs", "oldest", "executors"),
        (
            (
                marked("bold", item.type), item.state, number(item.jobs), seconds(item.oldest),
                number(item.executors) if item.executors else marked("red", "none"),
            )
            for item in types
        ),
        right=("jobs", "executors"),
        none="no job waits",
    )  # fmt: skip
    print_table(
        ("executor", "name", "partitions of", "running", "silent"),
        ((item.id, item.name, item.pool, number(item.running), seconds(item.silent)) for item in executors),
        right=("executor", "running"),
        none="no executor runs",
    )


@app.command("list")
@command
def list_jobs(
    flags: Flags,
    type_: OneType = None,
    state: Annotated[
        str | None, option("--state", "STATE", "scheduled, running, succeeded, failed, cancelled.")
    ] = None,
    group: OneGroup = None,
    limit: Annotated[int, option("--limit", "N", "Largest number of jobs to show.", min=1)] = 20,
) -> None:
    """List jobs, newest first."""
    from compactory_connectors.jobs.operators import jobs_where

    with _connect_to_jobs(flags) as connection:
        rows = jobs_where(connection, type_=type_, state=state, group=group, limit=limit)
    if flags.json:
        print_json({"jobs": [_fields(row) for row in rows]})
        return
    print_table(
        ("id", "type", "state", "group", "attempt", "run at", "last error"),
        (
            (
                row.id, marked("bold", row.type), row.state, row.group or None, row.attempt,
                f"{row.run_at:%Y-%m-%d %H:%M:%S}", ((row.last_error or "").strip().splitlines() or [""])[-1],
            )
            for row in rows
        ),
        right=("id", "attempt"),
        none="there is no such job",
    )  # fmt: skip


@app.command("show")
@command
def show_job(flags: Flags, id_: Annotated[int, argument("ID", "Id of a job.")]) -> None:
    """Show one job: everything but its payload, and the traceback of its last failure."""
    from compactory_connectors.jobs.operators import jobs_where

    with _connect_to_jobs(flags) as connection:
        rows = jobs_where(connection, [id_])
    if not rows:
        refuse(f"there is no job {id_}: finished ones are forgotten after a while")
    if flags.json:
        print_json(_fields(rows[0]))
        return
    for name, value in _fields(rows[0]).items():
        write(f"{name + ':':<13} {value if value is not None else '–'}")


@app.command("retry")
@command
def retry_jobs(flags: Flags, ids: Ids = None, type_: OneType = None, everything: All = False) -> None:
    """Run failed jobs again, from their first attempt on. With ids also cancelled jobs."""
    from compactory_connectors.jobs import operators

    _change_jobs(
        flags, ids, (type_, everything), lambda conn: operators.retry(conn, ids or (), type_), "will run again"
    )


@app.command("cancel")
@command
def cancel_jobs(flags: Flags, ids: Ids = None, type_: OneType = None, group: OneGroup = None) -> None:
    """Cancel waiting jobs, and ask running jobs to end."""
    from compactory_connectors.jobs import operators

    _change_jobs(flags, ids, (type_, group), lambda conn: operators.cancel(conn, ids or (), type_, group), "cancelled")


@app.command("discard")
@command
def discard_jobs(flags: Flags, ids: Ids = None, type_: OneType = None, everything: All = False) -> None:
    """Discard failed jobs, so that the next jobs of their groups run."""
    from compactory_connectors.jobs import operators

    _change_jobs(flags, ids, (type_, everything), lambda conn: operators.discard(conn, ids or (), type_), "discarded")


@app.command("roles")
@command
def create_jobs_roles(
    flags: Flags,
    enqueuer: Annotated[str, option("--enqueuer", "ROLE", "Role of services that enqueue.")] = "compactory_enqueuer",
    executor: Annotated[str, option("--executor", "ROLE", "Role of executors and operators.")] = "compactory_executor",
    only_print: Annotated[bool, flag("--print", "Print the SQL; change nothing.")] = False,
) -> None:
    """Create a database role for services that enqueue and one for executors, with only their rights."""
    from compactory_connectors.schema import plan_jobs_grants

    names = (enqueuer, executor)
    give_roles(flags, lambda connection: plan_jobs_grants(connection, *names), names, only_print=only_print)


def _fields(row: JobRow) -> dict[str, Any]:
    """Return a job without its payload, which may be confidential."""
    fields = {name: value for name, value in asdict(row).items() if name != "payload"}
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in fields.items()}


def _change_jobs(flags: Flags, ids: list[int] | None, choices: tuple[object, ...], act: Any, outcome: str) -> None:
    from compactory.errors import CompactoryError
    from compactory_connectors.jobs.operators import jobs_where

    if sum(map(bool, (ids, *choices))) != 1:
        refuse("which jobs? give ids or one of the options, not both")
    with _connect_to_jobs(flags) as connection:
        existing = {row.id for row in jobs_where(connection, ids, limit=len(ids))} if ids else set()
        if unknown := sorted(set(ids or ()) - existing):
            names = ", ".join(map(str, unknown))
            raise CompactoryError(f"there is no job {names}; nothing was changed: compactory jobs list shows them")
        count = act(connection)
    if ids and not count:
        raise CompactoryError("nothing was changed: the jobs are in no state for that; see compactory jobs show")
    print_count(count, "job", outcome, as_json=flags.json)


def _connect_to_jobs(flags: Flags) -> AbstractContextManager[psycopg.Connection[Any]]:
    from compactory_connectors.jobs.statements import open_jobs

    return connected(flags, open_jobs)
