"""The SQL text of Compactory: migrations, triggers of adopted tables, named queries. It imports no database driver."""

from compactory_sql.adoption import Adoption
from compactory_sql.loader import query, query_names, read
from compactory_sql.locks import (
    ADOPT_LOCK_CLASS,
    INSTALL_LOCK_CLASS,
    JOB_GROUP_LOCK_CLASS,
    JOB_LIMIT_LOCK_CLASS,
    JOBS_CHANNEL,
    JOBS_LOCK_CLASS,
    LEASE_LOCK_CLASS,
    LOAD_LOCK_CLASS,
    OUTBOX_CHANNEL,
    OUTBOX_LOCK_CLASS,
    PAUSED_CHANNEL,
    SOURCE_LOCK_CLASS,
    WAKEUP_CHANNEL,
    WAKEUP_LOCK_CLASS,
)
from compactory_sql.migration import Migration, migrations
from compactory_sql.step import Plan, Step, StepGroup

__all__ = [
    "ADOPT_LOCK_CLASS",
    "INSTALL_LOCK_CLASS",
    "JOBS_CHANNEL",
    "JOBS_LOCK_CLASS",
    "JOB_GROUP_LOCK_CLASS",
    "JOB_LIMIT_LOCK_CLASS",
    "LEASE_LOCK_CLASS",
    "LOAD_LOCK_CLASS",
    "OUTBOX_CHANNEL",
    "OUTBOX_LOCK_CLASS",
    "PAUSED_CHANNEL",
    "SOURCE_LOCK_CLASS",
    "WAKEUP_CHANNEL",
    "WAKEUP_LOCK_CLASS",
    "Adoption",
    "Migration",
    "Plan",
    "Step",
    "StepGroup",
    "migrations",
    "query",
    "query_names",
    "read",
]
