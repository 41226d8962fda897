"""`Jobs`: the handlers of a service, and enqueueing in the caller's transaction."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

import orjson

from compactory.errors import ConfigError, WriteRefused
from compactory_connectors.kafka.partitioner import murmur2
from compactory_connectors.postgres.caller import first, write
from compactory_connectors.retry import Retry
from compactory_sql import query

from .handler import Handler, OnFailure, PayloadType
from .job import TENANT, NewJob, Periodic
from .limits import JobLimit, limit_of
from .trace import trace_headers

__all__ = ["Jobs"]

F = TypeVar("F", bound=Callable[..., Any])


class Jobs:
    """The types of jobs that a service knows. Thread-safe once its handlers are there.

    A service that only enqueues names the types with :meth:`declare`; one without any type enqueues all of them.
    """

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.limits: dict[str, JobLimit] = {}
        self.periodic_jobs: dict[str, Periodic] = {}
        self._declared: dict[str, PayloadType] = {}
        self._problems: list[str] = []

    def handler(
        self,
        type: str,  # noqa: A002 - the word of the table
        *,
        retry: Retry | None = None,
        timeout: float | None = None,
        on_failure: OnFailure = "wait",
        history: bool = True,
        limit: int | None = None,
        rate: str | None = None,
    ) -> Callable[[F], F]:
        """Decorate the function that runs jobs of a type: ``def send(job)`` or ``def send(job, conn)``, async or not.

        ``conn`` is a connection of psycopg whose transaction completes the job: what the handler writes through it
        commits once, with the job. Do not commit it. Annotate ``job: Job[Model]`` to have payloads checked by pydantic.
        ``timeout`` are seconds. ``on_failure`` says what later jobs of its group do while it fails. Without
        ``history`` jobs that succeed are deleted at once. At most ``limit`` jobs of the type run at once in all
        executors, and at most ``rate`` jobs start, such as ``"100 per minute"``. Problems are raised by the constructor
        of an executor.
        """

        def decorated(function: F) -> F:
            handler = Handler(type, function, retry or Retry(), timeout, on_failure, history)
            try:
                declared_limit = limit_of("type", type, limit, rate)
            except ConfigError as error:
                self._problems += [f"handler of {type!r}: {problem}" for problem in error.problems]
            else:
                if declared_limit is not None:
                    self.limits[type] = declared_limit
            if type in self.handlers:
                self._problems.append(f"type {type!r} has two handlers: keep one")
            self._problems += handler.problems
            self.handlers[type] = handler
            return function

        return decorated

    def declare(self, type: str, payload: Any = Any) -> None:  # noqa: A002
        """Name a type whose handler is in another service, and the type that its payloads must fit."""
        self._declared[type] = PayloadType(type, payload)

    def periodic(
        self,
        cron: str,
        type: str,  # noqa: A002
        payload: Any = None,
        *,
        name: str | None = None,
        timezone: str = "UTC",
        group: str | None = None,
    ) -> None:
        """Enqueue a job at each tick of a cron expression, once in the whole fleet; ``name`` defaults to the type.

        Ticks that were missed while no executor ran come to one job.
        """
        job = NewJob(type=type, payload={} if payload is None else payload, group=group)
        periodic = Periodic(name=name or type, cron=cron, timezone=timezone, job=job)
        if periodic.name in self.periodic_jobs:
            self._problems.append(f"two periodic jobs are named {periodic.name!r}: give one another name=")
        self._problems += periodic.problems()
        self.periodic_jobs[periodic.name] = periodic

    def problems(self) -> list[str]:
        unknown = [job for job in self.periodic_jobs.values() if job.job.type not in self.handlers]
        return self._problems + [
            f"periodic job {job.name!r}: {self._unknown(job.job.type)}"
            for job in unknown
            if job.job.type not in self._declared
        ]

    def enqueue(
        self,
        conn: Any,
        type: str,  # noqa: A002
        payload: Any = None,
        *,
        group: str | None = None,
        origin: str | None = None,
        run_at: datetime | None = None,
        last_only: bool = False,
        unique_key: str | None = None,
        tenant: str | None = None,
    ) -> Any:
        """Enqueue a job in the transaction of ``conn`` and return its id. Await the id if ``conn`` is asynchronous.

        Jobs of one ``group`` run one after the other, in order of ids. ``origin`` decides which executor runs it, as
        the key of a record decides its partition. It does not run before ``run_at``. With ``last_only`` it supersedes
        the older scheduled jobs of its group and type. While a job of the type with the same ``unique_key`` is
        scheduled or runs, that one's id is returned and nothing is enqueued. See :meth:`enqueue_many`.
        """
        job = NewJob(
            type=type,
            payload={} if payload is None else payload,
            group=group,
            origin=origin,
            run_at=run_at,
            last_only=last_only,
            unique_key=unique_key,
            headers={TENANT: tenant} if tenant is not None else None,
        )
        return first(self.enqueue_many(conn, [job]))

    def enqueue_many(self, conn: Any, jobs: Iterable[NewJob]) -> Any:
        """Enqueue jobs in their order by one statement in the transaction of ``conn``; return the list of ids.

        ``conn`` is a psycopg connection, or an SQLAlchemy session or connection on psycopg. Await the result if it is
        asynchronous. The transaction is never committed here. Raises WriteRefused with every problem before anything is
        written, and in autocommit without a transaction; ConfigError if the database has no jobs or the role may not
        enqueue; psycopg.Error.
        """
        return write(conn, "enqueue", "job", "jobs", query("jobs/enqueue"), self._columns(list(jobs)))

    def _columns(self, jobs: Sequence[NewJob]) -> dict[str, Any]:
        problems: list[str] = []
        payloads: list[str] = []
        for number, job in enumerate(jobs, 1):
            try:
                payloads.append(self._encoded(job))
            except WriteRefused as error:
                problems += [f"job {number}: {problem}" for problem in error.problems]
        if problems:
            raise WriteRefused(problems)
        traced = trace_headers()
        columns = {
            "types": _array([job.type for job in jobs]),
            "payloads": _array(payloads),
            "groups": _array([job.group for job in jobs]),
            "origins": _array([job.origin for job in jobs]),
            "places": _array([_place(job.origin) if job.origin is not None else None for job in jobs]),
            "run_ats": _array([job.run_at for job in jobs]),
            "last_only": _array([job.last_only or None for job in jobs]),
            "unique_keys": _array([job.unique_key for job in jobs]),
            "headers": _array([_json(traced, job.headers) for job in jobs]),
        }
        if wrong := [name for name, column in columns.items() if column is not None and "\0" in column]:
            raise WriteRefused(f"{', '.join(wrong)}: Postgres can't hold the character NUL")
        return columns

    def _encoded(self, job: NewJob) -> str:
        if job.last_only and job.group is None:
            raise WriteRefused(f"{job.type!r} is last_only and has no group: give the group whose jobs it supersedes")
        if job.run_at is not None and getattr(job.run_at, "tzinfo", None) is None:
            raise WriteRefused(f"run_at of {job.type!r} has no time zone: use an aware datetime")
        handler = self.handlers.get(job.type)
        fits = handler.payload if handler is not None else self._declared.get(job.type)
        if fits is not None:
            return fits.encode(job.payload)
        if self.handlers or self._declared or not job.type:
            raise WriteRefused(self._unknown(job.type))
        return _ANY.encode(job.payload)

    def _unknown(self, type_: str) -> str:
        near = difflib.get_close_matches(type_, [*self.handlers, *self._declared], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "register a handler, or declare it"
        return f"unknown type {type_!r}: {hint}"


_ANY = PayloadType("any")


@lru_cache(65536)
def _place(origin: str) -> int:
    return murmur2(origin.encode()) & 0x7FFFFFFF


def _array(values: list[Any]) -> str | None:
    """Return Postgres' text form of an array; None if every value is None. psycopg takes ten times as long."""
    if values.count(None) == len(values):
        return None
    if None not in values:
        joined = "\0".join(map(str, values))
        if joined.count("\0") == len(values) - 1:  # else a value has one, which is refused
            return "{" + _quoted(joined).replace("\0", '","') + "}"
    return "{" + ",".join(["NULL" if value is None else _quoted(str(value)) for value in values]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json(traced: Mapping[str, str], headers: Mapping[str, str] | None) -> str | None:
    return orjson.dumps({**traced, **(headers or {})}).decode() if traced or headers else None
