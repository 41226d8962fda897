"""Migrations, and adoption of live tables. The SQL itself is in ``compactory_sql``; psycopg is used here."""

from compactory_sql import Adoption, Plan, Step

from .adoption import adopt, plan
from .inspection import Inspection, Status, inspect, status
from .lock import Patience
from .migration import MigrationStatus, install

__all__ = [
    "Adoption",
    "Inspection",
    "MigrationStatus",
    "Patience",
    "Plan",
    "Status",
    "Step",
    "adopt",
    "inspect",
    "install",
    "plan",
    "status",
]
