"""Migrations of schema ``compactory``, adoption of tables, and roles.

The SQL is in ``compactory_sql``; this package runs it with psycopg.
"""

from compactory_sql import Adoption, Plan, Step

from .adoption import adopt, plan
from .inspection import Inspection, Status, inspect, judge, status
from .lock import Patience
from .migration import MigrationStatus, install
from .roles import (
    Roles,
    grant,
    plan_grants,
    plan_jobs_grants,
    plan_outbox_grants,
    plan_sink_grants,
)

__all__ = [
    "Adoption",
    "Inspection",
    "MigrationStatus",
    "Patience",
    "Plan",
    "Roles",
    "Status",
    "Step",
    "adopt",
    "grant",
    "inspect",
    "install",
    "judge",
    "plan",
    "plan_grants",
    "plan_jobs_grants",
    "plan_outbox_grants",
    "plan_sink_grants",
    "status",
]
