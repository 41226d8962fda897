"""Jobs: work that a Postgres transaction leaves behind, and that runs once the transaction has committed.

`Jobs` holds handlers and enqueues in the caller's transaction, `JobExecutor` runs. docs/jobs.md says how.
"""

from compactory_connectors.retry import Retry

from .executor import JobExecutor
from .job import Cancel, Job, NewJob, Snooze
from .registry import Jobs

__all__ = ["Cancel", "Job", "JobExecutor", "Jobs", "NewJob", "Retry", "Snooze"]
