"""The parts that keep jobs right, and how each is taken out of a process, so that histories must notice."""

from __future__ import annotations

from compactory_connectors.jobs import claim_statements, claims, handler_connection, membership, statements
from compactory_sql import query

__all__ = ["PARTS", "take_out"]

_REPLACED = {
    "token": ("jobs/finish", "j.token = o.token", "true"),
    "group": ("jobs/claim_groups", "r.state = 'running' AND", "false AND"),
    "fence": ("jobs/fence", "count(pg_terminate_backend(pid))", "0 * count(*)"),
}
"""Name → the query that has the part, its text, and another in place of that."""

PARTS = (*_REPLACED, "hand-over")
"""``token``: of the attempt that ends; ``group``: no job runs in it; ``fence``: sessions of a dead executor are ended;
``hand-over``: of jobs that have not begun."""


def take_out(part: str) -> None:
    """Take a part out of this process."""
    if part == "hand-over":
        claims.Claims.give_back = lambda *_: None  # type: ignore[method-assign]
        return
    name, old, new = _REPLACED[part]
    assert old in query(name)
    changed = query(name).replace(old, new)
    for module in (claim_statements, handler_connection, membership, statements):
        module.query = lambda asked: changed if asked == name else query(asked)  # type: ignore[attr-defined]
