"""``compactory jobs``: runs jobs; finds them, runs them now, retries, cancels, discards, pauses and limits them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from compactory.errors import CompactoryError, Unreachable

from ..context.flags import App, LogLevel, argument, flag, option
from ..context.session import all_of, begin, confirm, connected, refuse
from ..context.worker import ListenOption, health_on, import_object, run_worker
from ..views.moment import parsed_time
from ..views.tables import Column, Table, bold, document, if_any, print_tables, time_text
from ..views.terminal import answer, counted, marked, number, print_count, print_json, seconds, wants_json, write
from .operators import By, Yes, add_log, show_change, table_of_pauses

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import psycopg

    from compactory_connectors.jobs.operators import JobCount, JobFilter, JobRow

__all__ = ["app"]

app = App(name="jobs", help="Run the jobs that transactions have enqueued.")

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
    Column("limit of", None, "kind"),
    Column("name", bold),
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

_State = Annotated[str | None, option("--state", "STATE", "scheduled, running, succeeded, failed, cancelled.")]
_Type = Annotated[str | None, option("--type", "TYPE", "Only jobs of this type.")]
_Group = Annotated[str | None, option("--group", "NAME", "Only jobs of this group.")]
_Tenant = Annotated[str | None, option("--tenant", "NAME", "Only jobs of this tenant.")]
_Since = Annotated[str | None, option("--since", "TIME", "Only jobs enqueued at this time or later.")]
_Until = Annotated[str | None, option("--until", "TIME", "Only jobs enqueued before this time.")]
_Payload = Annotated[str | None, option("--payload", "JSON", 'Only jobs whose payload has this, such as {"order": 7}.')]
_PausedType = Annotated[str | None, argument("[TYPE]", "A type of jobs.")]
_PausedGroup = Annotated[str | None, option("--group", "NAME", "A group, instead of a type.")]


@app.command("run")
def run_jobs(
    jobs: Annotated[str, argument("MODULE:JOBS", "Module and name of the `Jobs` with the handlers.")],
    concurrency: Annotated[int, option("--concurrency", "N", "Jobs that run at the same time.", min=1)] = 30,
    topic: Annotated[str | None, option("--topic", "NAME", "Run the jobs of its assigned partitions.")] = None,
    group_id: Annotated[str | None, option("--group-id", "ID", "Consumer group of the executors.")] = None,
    listen: ListenOption = None,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C. Any number of executors may run at the same time.

    Example: `compactory jobs run service:jobs --concurrency 10`
    """
    configuration = begin(LogLevel.INFO)
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
    answer({"runs": runs}, f"[bold]jobs[/] stopped: {totals or 'nothing was run'}")
    if not ended:
        raise Unreachable("a handler", "a handler did not end in time; its job is taken over within 10 s")


@app.command("status")
def show_jobs_status() -> None:
    """Show waiting jobs, their age, running executors, limits, and what is paused.

    Example: `compactory jobs status --json`
    """
    from compactory_connectors.jobs.status import executor_statuses, limit_statuses, type_statuses
    from compactory_connectors.postgres.pausing import paused

    with _connect_to_jobs() as connection:
        print_tables(
            Table("types", type_statuses(connection), _TYPES, "no job waits"),
            Table("executors", executor_statuses(connection), _EXECUTORS, "no executor runs"),
            Table("limits", [item.fields() for item in limit_statuses(connection)], _LIMITS),
            table_of_pauses(paused(connection, "jobs", "job-groups")),
        )


@app.command("list")
def list_jobs(
    *,
    state: _State = None,
    type_: _Type = None,
    group: _Group = None,
    tenant: _Tenant = None,
    since: _Since = None,
    until: _Until = None,
    payload: _Payload = None,
    limit: Annotated[int, option("--limit", "N", "Largest number of jobs to show.", min=1)] = 20,
    before_id: Annotated[int | None, option("--before", "ID", "Only jobs with lower ids: the next page.")] = None,
) -> None:
    """List jobs, newest first, and tell how many match: exactly up to 10,000, about beyond.

    Example: `compactory jobs list --state failed --payload '{"order": 7}'`
    """
    from compactory_connectors.jobs.operators import count_jobs, jobs_where

    where = _filter(since, until, state=state, type=type_, group=group, tenant=tenant, payload=payload)
    with _connect_to_jobs() as connection:
        rows = jobs_where(connection, where=where, before_id=before_id, limit=limit)
        count = count_jobs(connection, where)
    next_before = rows[-1].id if len(rows) == limit else None
    counts = {"count": count.jobs, "exact": count.is_exact, "next_before": next_before}
    print_tables(Table("jobs", rows, _JOBS, "there is no such job", _job_document), **counts)
    if next_before is not None and not wants_json():
        write(f"{len(rows)} of {_counted(count)}; the next page: --before {next_before}")


@app.command("show")
def show_job(id_: Annotated[int, argument("ID", "Id of a job.")]) -> None:
    """Show one job: everything but its payload, and the traceback of its last failure.

    Example: `compactory jobs show 42`
    """
    from compactory_connectors.jobs.operators import jobs_where

    with _connect_to_jobs() as connection:
        rows = jobs_where(connection, [id_])
    if not rows:
        refuse(f"there is no job {id_}: finished ones are forgotten after a while")
    shown = _job_document(rows[0])
    if wants_json():
        print_json(shown)
        return
    for name, value in shown.items():
        write(f"{name + ':':<13} {value if value is not None else '–'}")


def _add_job_act(name: str, outcome: str, text: str, example: str) -> None:
    """Add a command that changes jobs: those of the ids, or all that match after a confirmation."""

    @app.command(name, help=f"{text}\n\nExample: `compactory jobs {name} {example}`")
    def change_jobs(
        ids: Annotated[list[int] | None, argument("[ID]…", "Ids of jobs.")] = None,
        *,
        state: _State = None,
        type_: _Type = None,
        group: _Group = None,
        tenant: _Tenant = None,
        since: _Since = None,
        until: _Until = None,
        payload: _Payload = None,
        everything: Annotated[bool, flag("--all", "All jobs that can be changed so.")] = False,
        yes: Yes = False,
        by: By = None,
    ) -> None:
        from compactory_connectors.jobs import operators

        where = _filter(since, until, state=state, type=type_, group=group, tenant=tenant, payload=payload)
        if sum((bool(ids), where != operators.JobFilter(), everything)) != 1:
            refuse("which jobs? give ids, options that select jobs, or --all")
        with _connect_to_jobs() as connection:
            if ids:
                existing = {row.id for row in operators.jobs_where(connection, ids, limit=len(ids))}
                if unknown := ", ".join(map(str, sorted(set(ids) - existing))):
                    remedy = "compactory jobs list shows them"
                    raise CompactoryError(f"there is no job {unknown}; nothing was changed: {remedy}")
            elif not yes:
                matching = operators.count_jobs(connection, where, operators.Act(name))
                if matching.jobs:
                    text = _counted(matching)
                    confirm(
                        f"{name}: {text} match. Change them?",
                        f"{name} would change {text}; not a terminal: add --yes",
                    )
            count = operators.change_jobs(connection, operators.Act(name), ids or None, where, by=by)
        if ids and not count:
            raise CompactoryError("nothing was changed: the jobs are in no state for that; see compactory jobs show")
        print_count(count, "job", outcome)


_add_job_act(
    "run-now",
    "will run now",
    "Run jobs now that wait for their time or for a retry. Earlier jobs of their groups still run first.",
    "--type transport.notify",
)
_add_job_act(
    "retry",
    "will run again",
    "Run failed jobs again, from their first attempt on. With ids or --state also cancelled jobs.",
    "--type transport.notify --since 2024-01-31T10:00+02:00",
)
_add_job_act("cancel", "cancelled", "Cancel waiting jobs, and ask running jobs to end.", "--group T1")
_add_job_act(
    "discard",
    "discarded",
    "Discard failed jobs, so that the next jobs of their groups run.",
    """--payload '{"order": 7}' --yes""",
)


def _add_jobs_pausing(verb: str, outcome: str, text: str) -> None:
    @app.command(verb, help=f"{text}\n\nExample: `compactory jobs {verb} transport.notify`")
    def change_pause(type_: _PausedType = None, group: _PausedGroup = None, by: By = None) -> None:
        from compactory_connectors.jobs import operators

        with _connect_to_jobs() as connection:
            result = getattr(operators, verb)(connection, type_, group=group, by=by)
        show_change(f"group {group}" if group else f"type {type_}", outcome, result)


_add_jobs_pausing(
    "pause", "paused", "Pause a type or a group: no executor starts such jobs. Running jobs end normally."
)
_add_jobs_pausing("resume", "running", "Resume a type or a group that is paused.")


@app.command("limit")
def limit_jobs(
    type_: _PausedType = None,
    group: Annotated[str | None, option("--group", "PREFIX", "Groups that begin so, instead of a type.")] = None,
    tenant: Annotated[str | None, option("--tenant", "NAME", "A tenant, instead of a type.")] = None,
    running: Annotated[int | None, option("--running", "N", "Jobs that run at once in all executors.")] = None,
    rate: Annotated[str | None, option("--rate", "RATE", "Jobs that start, such as '100 per minute'.")] = None,
    remove: Annotated[bool, flag("--remove", "Remove the limit. What handlers declare counts again.")] = False,
    by: By = None,
) -> None:
    """Limit a type, a tenant, or groups by a prefix, in all executors. A job obeys all limits that cover it.

    Example: `compactory jobs limit transport.notify --running 5 --rate '100 per minute'`
    """
    from compactory_connectors.jobs.limits import remove_limit, set_limit

    if remove and (running is not None or rate is not None):
        refuse("give --remove, or a limit with --running and --rate, not both")
    name = f"type {type_}" if type_ else f"tenant {tenant}" if tenant else f"groups {group}…"
    with _connect_to_jobs() as connection:
        if remove:
            has_changed = remove_limit(connection, type_, group=group, tenant=tenant, by=by)
            show_change(name, "without a limit of operators", has_changed)
        else:
            warning = set_limit(connection, type_, group=group, tenant=tenant, running=running, rate=rate, by=by)
            show_change(name, "limited", (True, warning))


def _connect_to_jobs() -> AbstractContextManager[psycopg.Connection[Any]]:
    from compactory_connectors.jobs.statements import open_jobs

    return connected(open_jobs)


add_log(app, _connect_to_jobs, "jobs")


def _filter(since: str | None, until: str | None, **values: Any) -> JobFilter:
    """Return the filter for the options that select jobs. Raises ConfigError for a value that is unusable."""
    from compactory_connectors.jobs.operators import JobFilter

    for name, text in (("since", since), ("until", until)):
        values[name] = parsed_time(f"--{name}", text) if text is not None else None
    return JobFilter(**values)


def _job_document(row: JobRow) -> dict[str, Any]:
    """Return a job as JSON without its payload, which may be confidential."""
    return {name: value for name, value in document(row).items() if name != "payload"}


def _counted(count: JobCount) -> str:
    return f"{'' if count.is_exact else 'about '}{counted(count.jobs, 'job')}"
