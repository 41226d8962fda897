"""Limits of types, tenants and groups by a prefix: jobs that run at once, and starts in a window of time.

Operators set and remove limits here; each act writes a line of the operator log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import orjson
import psycopg

from compactory.errors import ConfigError
from compactory_connectors.postgres.operator_log import log_act, person
from compactory_connectors.postgres.pausing import unseen
from compactory_sql import query

from .job import TENANT
from .rows import Claimed

__all__ = [
    "NO_LIMIT",
    "JobLimit",
    "LimitKey",
    "LimitKind",
    "Limits",
    "limit_of",
    "limits_json",
    "remove_limit",
    "set_limit",
]

_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_RATE = re.compile(rf"([1-9][0-9]{{0,8}}) per ({'|'.join(_SECONDS)})")
_MOST: Final = 1_000_000_000
_LONGEST_NAME: Final = 1000  # characters, because notifications contain names

LimitKind: TypeAlias = Literal["type", "group", "tenant"]
"""The jobs of a type, those whose group begins with a prefix, and those of a tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimit:
    """At most ``running`` jobs at once, and ``rate_count`` starts in each window of ``rate_seconds``.

    None: no such limit. ``name`` is the type, the prefix or the tenant. ``by_operator`` False: handlers declare it.
    """

    kind: LimitKind
    name: str
    running: int | None = None
    rate_count: int | None = None
    rate_seconds: int | None = None
    by_operator: bool = False

    @property
    def rate(self) -> str | None:
        """The rate as text, such as ``100 per minute``."""
        if self.rate_seconds is None:
            return None
        unit = next((name for name, seconds in _SECONDS.items() if seconds == self.rate_seconds), None)
        return f"{self.rate_count} per {unit or f'{self.rate_seconds} seconds'}"

    @property
    def slot(self) -> str:
        """The name of the limit in notifications."""
        return f"{self.kind} {self.name}"

    def covers(self, type_: str | None, group: str | None, tenant: str | None) -> bool:
        """Return True if jobs of this type, group and tenant are under the limit."""
        if self.kind == "group":
            return group is not None and group.startswith(self.name)
        return self.name == (type_ if self.kind == "type" else tenant)

    def parameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("kind", "name", "running", "rate_count", "rate_seconds")}

    def fields(self) -> dict[str, Any]:
        source = "operator" if self.by_operator else "handlers"
        return {"kind": self.kind, "name": self.name, "running": self.running, "rate": self.rate, "set_by": source}


def limits_json(limits: Iterable[JobLimit]) -> str:
    """Return the parameter of statements about several limits."""
    return orjson.dumps([limit.parameters() for limit in limits]).decode()


def limit_of(kind: LimitKind, name: str, running: int | None, rate: str | None) -> JobLimit | None:
    """Return a limit; None if neither number nor rate is given. Raises ConfigError with every problem."""
    problems: list[str] = []
    if not name or len(name) > _LONGEST_NAME or "\0" in name:
        article = "the prefix of a group" if kind == "group" else f"a {kind}"
        problems.append(f"name {article} to limit, in at most {_LONGEST_NAME} characters and without NUL")
    is_number = isinstance(running, int) and not isinstance(running, bool)
    if running is not None and not (is_number and 1 <= running <= _MOST):
        problems.append(f"the limit must be a number of jobs from 1 to {_MOST:,}, not {running!r}")
    match = None if rate is None else _RATE.fullmatch(str(rate))
    if rate is not None and match is None:
        units = ", ".join(_SECONDS)
        problems.append(f"the rate must be a number of jobs per {units}, such as '100 per minute', not {rate!r}")
    if problems:
        raise ConfigError(problems)
    if running is None and match is None:
        return None
    count, seconds = (int(match[1]), _SECONDS[match[2]]) if match else (None, None)
    return JobLimit(kind=kind, name=name, running=running, rate_count=count, rate_seconds=seconds)


class LimitKey(NamedTuple):
    """The limited type, longest limited prefix of the group, and limited tenant of a job. None: without a limit.

    Jobs with equal keys are under the same limits. Shorter prefixes that are limited too follow from the longest one.
    """

    type: str | None
    prefix: str | None
    tenant: str | None


NO_LIMIT: Final = LimitKey(None, None, None)


class Limits:
    """The limits in force. Owned by the keeper's thread."""

    def __init__(self, limits: Sequence[JobLimit] = ()) -> None:
        self.in_force = limits
        self._of_key: dict[LimitKey, list[JobLimit]] = {NO_LIMIT: []}

    @cached_property
    def types(self) -> list[str]:
        return [limit.name for limit in self.in_force if limit.kind == "type"]

    @cached_property
    def tenants(self) -> list[str]:
        return [limit.name for limit in self.in_force if limit.kind == "tenant"]

    @cached_property
    def prefixes(self) -> list[str]:
        """The limited prefixes of groups, longest first."""
        return sorted((limit.name for limit in self.in_force if limit.kind == "group"), key=len, reverse=True)

    def of_key(self, key: LimitKey) -> list[JobLimit]:
        if key not in self._of_key:
            self._of_key[key] = [limit for limit in self.in_force if limit.covers(*key)]
        return self._of_key[key]

    def of_job(self, job: Claimed) -> list[JobLimit]:
        if not self.in_force:
            return []
        tenant, group = (job.headers or {}).get(TENANT), job.group
        prefix = None if group is None else next((name for name in self.prefixes if group.startswith(name)), None)
        key = LimitKey(job.type if job.type in self.types else None, prefix, tenant if tenant in self.tenants else None)
        return self.of_key(key)

    def parameters(self, key: LimitKey) -> dict[str, Any]:
        """Return the parameters of claims of jobs with this key, except the types."""
        longer = [name for name in self.prefixes if name != key.prefix and name.startswith(key.prefix or "")]
        return {
            "header": TENANT,
            "tenant": key.tenant,
            "prefix": key.prefix,
            "other_tenants": [] if key.tenant is not None else self.tenants,
            "other_prefixes": longer,
            "by_row": bool(self.tenants or self.prefixes),
        }


def set_limit(
    connection: psycopg.Connection[Any],
    type_: str | None = None,
    *,
    group: str | None = None,
    tenant: str | None = None,
    running: int | None = None,
    rate: str | None = None,
    by: str | None = None,
) -> str | None:
    """Limit the jobs of a type, of a tenant, or of all groups whose names begin with ``group``, in all executors.

    ``running``: jobs that run at once. ``rate``: starts, such as ``"100 per minute"``. The limit replaces an earlier
    one; that of a type also what handlers declare. A job obeys each limit that covers it. Executors obey within a
    second. Return a warning if the type was not seen yet. Raises ConfigError if not exactly one of type, group and
    tenant is given, if neither number nor rate is given or one can't be used, psycopg.Error.
    """
    kind, name = _limited(type_, group, tenant)
    limit = limit_of(kind, name, running, rate)
    if limit is None:
        raise ConfigError("give running, rate or both: remove the limit to have none")
    warning = None
    if kind == "type":
        warning = unseen("type", name, (row[0] for row in connection.execute(query("jobs/types"))))
    with connection.transaction():
        connection.execute(query("jobs/set_limit"), limit.parameters() | {"by": person(by)})
        log_act(connection, "jobs", "limit", {kind: name, "running": running, "rate": rate}, 1, by)
        connection.execute(query("jobs/notify_limits"))
    return warning


def remove_limit(
    connection: psycopg.Connection[Any],
    type_: str | None = None,
    *,
    group: str | None = None,
    tenant: str | None = None,
    by: str | None = None,
) -> bool:
    """Remove the limit that an operator has set; that of a handler counts again. Return False if there was none.

    Raises ConfigError if not exactly one of type, group and tenant is given, psycopg.Error.
    """
    kind, name = _limited(type_, group, tenant)
    with connection.transaction():
        count = connection.execute(query("jobs/remove_limit"), {"kind": kind, "name": name}).rowcount
        log_act(connection, "jobs", "remove-limit", {kind: name}, count, by)
        connection.execute(query("jobs/notify_limits"))
    return count > 0


def _limited(type_: str | None, group: str | None, tenant: str | None) -> tuple[LimitKind, str]:
    if [type_, group, tenant].count(None) == 2:
        if type_ is not None:
            return "type", type_
        if group is not None:
            return "group", group
        if tenant is not None:
            return "tenant", tenant
    raise ConfigError("give a type, a prefix of groups or a tenant to limit, and only one of them")
