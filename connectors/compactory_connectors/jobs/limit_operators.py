"""Operators' functions about limits of jobs: set and remove. Each act writes a line of the operator log."""

from __future__ import annotations

from typing import Any

import psycopg

from compactory.errors import ConfigError
from compactory_connectors.postgres.operator_log import log_act, person
from compactory_connectors.postgres.pausing import unseen
from compactory_sql import query

from .limits import LimitKind, limit_of

__all__ = ["remove_limit", "set_limit"]


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
    """Remove the limit that an operator has set; what handlers declare counts again. Return False if there was none.

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
