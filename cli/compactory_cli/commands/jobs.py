"""``compactory jobs``: runs jobs; finds them, runs them now, retries, cancels, discards, pauses and limits them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.database import connected, give_roles
from ..context.flags import Flags, LogLevel, argument, command, flag, option
from ..context.session import all_of, begin, refuse
from ..context.worker import ListenOption, health_on, import_object, run_worker
from ..views.moment import parsed_time
from ..views.tables import Column, Table, bold, if_any, print_tables, time_text
from ..views.terminal import answer, counted, marked, number, print_count, print_json, seconds, write
from .operators import By, Limit, show_change, show_log, table_of_pauses

if TYPE_CHECKING:
    import psycopg

    from compactory_connectors.jobs.operators import Act, JobCount, JobFilter, JobRow
    from compactory_connectors.jobs.status import LimitStatus

__all__ = ["app"]

app = typer.Typer(name="jobs", help="Run the jobs that transactions have enqueued.", no_args_is_help=True)

Ids = Annotated[list[int] | None, argument("[ID]…", "Ids of jobs.")]
OneType = Annotated[str | None, argument("[TYPE]", "A type of jobs.")]
OneGroup = Annotated[str | None, option("--group", "NAME", "A group, instead of a type.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Options that select jobs; None means not given."""

    state: Annotated[str | None, option("--state", "STATE", "scheduled, running, succeeded, failed, cancelled.")] = None
    type: Annotated[str | None, option("--type", "TYPE", "Only jobs of this type.")] = None
    group: Annotated[str | None, option("--group", "NAME", "Only jobs of this group.")] = None
    tenant: Annotated[str | None, option("--tenant", "NAME", "Only jobs of this tenant.")] = None
    since: Annotated[str | None, option("--since", "TIME", "Only jobs enqueued at this time or later.")] = None
    until: Annotated[str | None, option("--until", "TIME", "Only jobs enqueued before this time.")] = None
    payload: Annotated[
        str | None, option("--payload", "JSON", 'Only jobs whose payload contains this, such as {"order": 7}.')
    ] = None

    def filter(self) -> JobFilter:
        """Return the filter for these options. Raises ConfigError for a value that is unusable."""
        from compactory_connectors.jobs.operators import JobFilter

        options = asdict(self)
        for name in ("since", "until"):
            if options[name] is not None:
                options[name] = parsed_time(f"--{name}", options[name])
        return JobFilter(**options)


_TYPES = (
    Column("type", bold),
    Column("state"),
    Column("jobs", number, right=True),
    Column("oldest", seconds),
    Column("executors", lambda count: number(count) if count else marked("red", "none"), right=True),
)
_EXECUTORS = (
    Column("executor", None, "id", right=True),
    Column("name"),
    Column("partitions of", None, "pool"),
    Column("running", number, right=True),
    Column("silent", seconds),
)
_LIMITS = (
    Column("limited type", bold, "type"),
    Column("running", number, "running_now", right=True),
    Column("at most", number, "running", right=True),
    Column("rate"),
    Column("set by"),
)
_JOBS = (
    Column("id", right=True),
    Column("type", bold),
    Column("state"),
    Column("group", if_any),
    Column("attempt", right=True),
    Column("run at", time_text),
    Column("last error", lambda text: (text.strip().splitlines() or [""])[-1]),
)

All = Annotated[bool, flag("--all", "All jobs that can be changed so.")]
Yes = Annotated[bool, flag("--yes", "Do not ask before jobs that match are changed.")]


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
    """Run jobs until SIGTERM or Ctrl-C. Any number of executors may run at the same time.

    Example: `compactory jobs run service:jobs --concurrency 10`
    """
    configuration = begin(flags, LogLevel.INFO)
    from compactory.errors import Unreachable
    from compactory_connectors.jobs import JobExecutor, Jobs
    from compactory_connectors.jobs.status import JobsWorker

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
    """Show waiting jobs, their age, running executors, limits, and what is paused.

    Example: `compactory jobs status --json`
    """
    from compactory_connectors.jobs.status import executor_statuses, limit_statuses, type_statuses
    from compactory_connectors.postgres.pausing import paused

    with _connect_to_jobs(flags) as connection:
        types, executors = type_statuses(connection), executor_statuses(connection)
        pauses, limits = paused(connection, "jobs", "job-groups"), limit_statuses(connection)
    print_tables(
        Table("types", types, _TYPES, "no job waits"),
        Table("executors", executors, _EXECUTORS, "no executor runs"),
        _table_of_limits(limits),
        table_of_pauses(pauses),
        as_json=flags.json,
    )


@app.command("list")
@command
def list_jobs(
    flags: Flags,
    matching: Matching,
    limit: Annotated[int, option("--limit", "N", "Largest number of jobs to show.", min=1)] = 20,
    before_id: Annotated[int | None, option("--before", "ID", "Only jobs with lower ids: the next page.")] = None,
) -> None:
    """List jobs, newest first, and tell how many match: exactly up to 10,000, about beyond.

    Example: `compactory jobs list --state failed --payload '{"order": 7}'`
    """
    from compactory_connectors.jobs.operators import count_jobs, jobs_where

    where = matching.filter()
    with _connect_to_jobs(flags) as connection:
        rows = jobs_where(connection, where=where, before_id=before_id, limit=limit)
        count = count_jobs(connection, where)
    next_before = rows[-1].id if len(rows) == limit else None
    counts = {"count": count.jobs, "exact": count.is_exact, "next_before": next_before}
    print_tables(Table("jobs", rows, _JOBS, "there is no such job", _fields), as_json=flags.json, **counts)
    if next_before is not None and not flags.json:
        write(f"{len(rows)} of {_counted(count)}; the next page: --before {next_before}")


@app.command("show")
@command
def show_job(flags: Flags, id_: Annotated[int, argument("ID", "Id of a job.")]) -> None:
    """Show one job: everything but its payload, and the traceback of its last failure.

    Example: `compactory jobs show 42`
    """
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


@app.command("run-now")
@command
def run_jobs_now(
    flags: Flags, matching: Matching, ids: Ids = None, everything: All = False, yes: Yes = False, by: By = None
) -> None:
    """Run jobs now that wait for their time or for a retry. Earlier jobs of their groups still run first.

    Example: `compactory jobs run-now --type transport.notify`
    """
    _change_jobs(flags, "run-now", ids, matching, everything, yes, by, "will run now")


@app.command("retry")
@command
def retry_jobs(
    flags: Flags, matching: Matching, ids: Ids = None, everything: All = False, yes: Yes = False, by: By = None
) -> None:
    """Run failed jobs again, from their first attempt on. With ids or --state also cancelled jobs.

    Example: `compactory jobs retry --type transport.notify --since 2024-01-31T10:00+02:00`
    """
    _change_jobs(flags, "retry", ids, matching, everything, yes, by, "will run again")


@app.command("cancel")
@command
def cancel_jobs(
    flags: Flags, matching: Matching, ids: Ids = None, everything: All = False, yes: Yes = False, by: By = None
) -> None:
    """Cancel waiting jobs, and ask running jobs to end.

    Example: `compactory jobs cancel --group T1`
    """
    _change_jobs(flags, "cancel", ids, matching, everything, yes, by, "cancelled")


@app.command("discard")
@command
def discard_jobs(
    flags: Flags, matching: Matching, ids: Ids = None, everything: All = False, yes: Yes = False, by: By = None
) -> None:
    """Discard failed jobs, so that the next jobs of their groups run.

    Example: `compactory jobs discard --payload '{"order": 7}' --yes`
    """
    _change_jobs(flags, "discard", ids, matching, everything, yes, by, "discarded")


@app.command("pause")
@command
def pause_jobs(flags: Flags, type_: OneType = None, group: OneGroup = None, by: By = None) -> None:
    """Pause a type or a group: no executor starts such jobs. Running jobs end normally.

    Example: `compactory jobs pause transport.notify`
    """
    from compactory_connectors.jobs import operators

    with _connect_to_jobs(flags) as connection:
        result = operators.pause(connection, type_, group=group, by=by)
    show_change(flags, f"group {group}" if group else f"type {type_}", "paused", *result)


@app.command("resume")
@command
def resume_jobs(flags: Flags, type_: OneType = None, group: OneGroup = None, by: By = None) -> None:
    """Resume a type or a group that is paused.

    Example: `compactory jobs resume transport.notify`
    """
    from compactory_connectors.jobs import operators

    with _connect_to_jobs(flags) as connection:
        has_changed = operators.resume(connection, type_, group=group, by=by)
    show_change(flags, f"group {group}" if group else f"type {type_}", "running", has_changed)


@app.command("limit")
@command
def limit_jobs(
    flags: Flags,
    type_: Annotated[str, argument("TYPE", "A type of jobs.")],
    running: Annotated[int | None, option("--running", "N", "Jobs that run at once in all executors.")] = None,
    rate: Annotated[str | None, option("--rate", "RATE", "Jobs that start, such as '100 per minute'.")] = None,
    remove: Annotated[bool, flag("--remove", "Remove the limit. What handlers declare counts again.")] = False,
    by: By = None,
) -> None:
    """Limit a type in all executors, in place of an earlier limit and of what handlers declare.

    Example: `compactory jobs limit transport.notify --running 5 --rate '100 per minute'`
    """
    from compactory_connectors.jobs import operators

    if remove and (running is not None or rate is not None):
        refuse("give --remove, or a limit with --running and --rate, not both")
    with _connect_to_jobs(flags) as connection:
        if remove:
            has_changed, warning = operators.remove_limit(connection, type_, by=by), None
        else:
            warning = operators.set_limit(connection, type_, running=running, rate=rate, by=by)
            has_changed = True
    show_change(flags, f"type {type_}", "without a limit of operators" if remove else "limited", has_changed, warning)


@app.command("limits")
@command
def show_jobs_limits(flags: Flags) -> None:
    """Show the limits in force, and how many jobs of each type run or are claimed.

    Example: `compactory jobs limits --json`
    """
    from compactory_connectors.jobs.status import limit_statuses

    with _connect_to_jobs(flags) as connection:
        limits = limit_statuses(connection)
    print_tables(_table_of_limits(limits, "no type has a limit"), as_json=flags.json)


@app.command("log")
@command
def show_jobs_log(flags: Flags, limit: Limit = 100) -> None:
    """Show what operators have done to jobs in the last 90 days: who, what and how many.

    Example: `compactory jobs log --limit 20`
    """
    show_log(flags, _connect_to_jobs(flags), "jobs", limit)


@app.command("roles")
@command
def create_jobs_roles(
    flags: Flags,
    enqueuer: Annotated[str, option("--enqueuer", "ROLE", "Role of services that enqueue.")] = "compactory_enqueuer",
    executor: Annotated[str, option("--executor", "ROLE", "Role of executors and operators.")] = "compactory_executor",
    only_print: Annotated[bool, flag("--print", "Print the SQL; change nothing.")] = False,
) -> None:
    """Create a database role for services that enqueue and one for executors, with only their rights.

    Example: `compactory jobs roles --print`
    """
    from compactory_connectors.schema import plan_jobs_grants

    names = (enqueuer, executor)
    give_roles(flags, lambda connection: plan_jobs_grants(connection, *names), names, only_print=only_print)


def _table_of_limits(limits: Sequence[LimitStatus], none: str | None = None) -> Table:
    return Table("limits", [item.fields() for item in limits], _LIMITS, none)


def _fields(row: JobRow) -> dict[str, Any]:
    """Return a job without its payload, which may be confidential."""
    fields = {name: value for name, value in asdict(row).items() if name != "payload"}
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in fields.items()}


def _change_jobs(
    flags: Flags,
    name: str,
    ids: list[int] | None,
    matching: Matching,
    everything: bool,
    yes: bool,
    by: str | None,
    outcome: str,
) -> None:
    """Make a change by ids, or of all jobs that match after a confirmation."""
    from compactory.errors import CompactoryError
    from compactory_connectors.jobs import operators

    has_filter = any(getattr(matching, item.name) is not None for item in fields(matching))
    if sum((bool(ids), has_filter, everything)) != 1:
        refuse("which jobs? give ids, options that select jobs, or --all")
    act, where = operators.Act(name), matching.filter()
    change = {
        operators.Act.RUN_NOW: operators.run_now,
        operators.Act.RETRY: operators.retry,
        operators.Act.CANCEL: operators.cancel,
        operators.Act.DISCARD: operators.discard,
    }[act]
    with _connect_to_jobs(flags) as connection:
        if ids:
            existing = {row.id for row in operators.jobs_where(connection, ids, limit=len(ids))}
            if unknown := sorted(set(ids) - existing):
                names = ", ".join(map(str, unknown))
                raise CompactoryError(f"there is no job {names}; nothing was changed: compactory jobs list shows them")
        elif not yes:
            _confirm_change(act, operators.count_jobs(connection, where, act))
        count = change(connection, ids or None, where, by=by)
    if ids and not count:
        raise CompactoryError("nothing was changed: the jobs are in no state for that; see compactory jobs show")
    print_count(count, "job", outcome, as_json=flags.json)


def _confirm_change(act: Act, count: JobCount) -> None:
    """Ask before jobs are changed, unless none matches."""
    if not count.jobs:
        return
    if not sys.stdin.isatty():
        refuse(f"{act} would change {_counted(count)}; not a terminal: add --yes")
    typer.confirm(f"{act}: {_counted(count)} match. Change them?", abort=True, err=True)


def _counted(count: JobCount) -> str:
    return f"{'' if count.is_exact else 'about '}{counted(count.jobs, 'job')}"


def _connect_to_jobs(flags: Flags) -> AbstractContextManager[psycopg.Connection[Any]]:
    from compactory_connectors.jobs.statements import open_jobs

    return connected(flags, open_jobs)
