"""The pages of jobs: counts, filters, one job, and changes of one job or of all that match."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import psycopg
from starlette.responses import JSONResponse, Response

from compactory.errors import ConfigError
from compactory_connectors.jobs import operators
from compactory_connectors.jobs.operators import CHANGEABLE_STATES, STATES, Act, JobFilter, count_jobs, jobs_where
from compactory_connectors.jobs.statements import open_jobs
from compactory_connectors.jobs.status import executor_statuses, limit_statuses, type_statuses
from compactory_connectors.postgres.pausing import paused

from ..call import Call
from ..job_counts import count_unfinished
from ..rendering import counted

__all__ = ["change_jobs", "confirm_page", "job_chart", "job_page", "jobs_page"]

_PAGE = 50
_FIELDS = ("state", "type", "group", "tenant", "payload")


async def jobs_page(call: Call) -> Response:
    """Return the jobs that match, newest first, and the counts of all."""
    call.session.demand_read()
    where, before_id = _filter(call.request.query_params), call.number("before")

    def read(connection: psycopg.Connection[Any]) -> dict[str, Any]:
        return {
            "jobs": jobs_where(connection, where=where, before_id=before_id, limit=_PAGE),
            "count": count_jobs(connection, where),
            "unfinished": count_unfinished(connection),
            "types": type_statuses(connection),
            "limits": limit_statuses(connection),
            "executors": executor_statuses(connection),
            "paused": paused(connection, "jobs", "job-groups"),
        }

    facts = await call.parts.operators.in_database(read, open_jobs)
    return call.page(
        "jobs.html", where=where, before=before_id, states=STATES, acts=list(Act), page_size=_PAGE,
        filter={name: value for name, value in asdict(where).items() if value is not None}, **facts,
    )  # fmt: skip


async def job_chart(call: Call) -> Response:
    """Return the counts of jobs by state over the last hour, for a chart."""
    call.session.demand_read()
    return JSONResponse({"series": call.parts.job_counts.series()})


async def job_page(call: Call) -> Response:
    """Return one job with its payload and its last error."""
    call.session.demand_read()
    number = call.request.path_params["job"]
    jobs = await call.parts.operators.in_database(lambda sql: jobs_where(sql, [number]), open_jobs)
    if not jobs:
        raise ConfigError(f"there is no job {number}, or it was deleted after its time")
    job = jobs[0] if call.session.is_admin else replace(jobs[0], payload="(needs the admin scope)", headers=None)
    return call.page("job.html", job=job, acts=[act for act in Act if job.state in CHANGEABLE_STATES[act]])


async def confirm_page(call: Call) -> Response:
    """Return the question whether so many jobs are to be changed."""
    call.session.demand_admin()
    act, where = _act(call.query("act")), _filter(call.request.query_params)
    count = await call.parts.operators.in_database(lambda sql: count_jobs(sql, where, act), open_jobs)
    filter_ = {name: value for name, value in asdict(where).items() if value is not None}
    return call.page("confirm.html", act=act, count=count, filter=filter_)


async def change_jobs(call: Call) -> Response:
    """Change the chosen jobs, or all that match."""
    call.session.demand_admin()
    act = _act(call.field("act"))
    ids = call.ids()
    if not ids and call.field("all") != "yes":
        raise ConfigError("choose jobs first")
    where = JobFilter() if ids else _filter({name: values[0] for name, values in call.form.items()})
    count = await call.parts.operators.in_database(
        lambda sql: operators.change_jobs(sql, act, ids or None, where, by=call.by), open_jobs
    )
    target = f"/jobs/{ids[0]}" if call.field("back") == "job" else "/jobs"
    return call.back(target, f"{act}: {counted(count, 'job')}.", state=None if ids else where.state)


def _filter(fields: Any) -> JobFilter:
    return JobFilter(**{name: fields.get(name) or None for name in _FIELDS})


def _act(text: str | None) -> Act:
    try:
        return Act(text or "")
    except ValueError:
        raise ConfigError(f"choose one of {', '.join(Act)}") from None
