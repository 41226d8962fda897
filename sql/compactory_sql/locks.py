"""Numbers and names that SQL and Python must agree on; tests compare them with the installed functions.

Advisory locks are named by a class and a key of four bytes each; the classes spell ``CMP?`` in ASCII.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ADOPT_LOCK_CLASS",
    "INSTALL_LOCK_CLASS",
    "JOBS_CHANNEL",
    "JOBS_LOCK_CLASS",
    "JOB_GROUP_LOCK_CLASS",
    "LEASE_LOCK_CLASS",
    "LOAD_LOCK_CLASS",
    "OUTBOX_CHANNEL",
    "OUTBOX_LOCK_CLASS",
    "SOURCE_LOCK_CLASS",
    "WAKEUP_CHANNEL",
    "WAKEUP_LOCK_CLASS",
]

#: Held exclusively, with the root table's oid as key, by a source that sleeps until it is notified.
WAKEUP_LOCK_CLASS: Final = 0x434D5057
#: Shared, with a digest of the connector's name as key, by every source that runs.
SOURCE_LOCK_CLASS: Final = 0x434D5053
#: Held exclusively, with the same key, by the source that publishes, where there is no lease row to be written.
LEASE_LOCK_CLASS: Final = 0x434D504C
#: Held, with key 0, by whoever applies migrations.
INSTALL_LOCK_CLASS: Final = 0x434D5049
#: Held, with the table's oid as key, by whoever adopts a table.
ADOPT_LOCK_CLASS: Final = 0x434D5041
#: Held, with the table's oid as key, by whoever loads files into a table.
LOAD_LOCK_CLASS: Final = 0x434D5042
#: Held exclusively, with key 0, by a relay of the outbox that sleeps until it is notified.
OUTBOX_LOCK_CLASS: Final = 0x434D504F
#: Held exclusively, with key 0, by an executor of jobs that sleeps until it is notified.
JOBS_LOCK_CLASS: Final = 0x434D504A
#: Held, with a digest of a group's name as key, by an executor that claims jobs of the group.
JOB_GROUP_LOCK_CLASS: Final = 0x434D5047

#: NOTIFY channel of jobs; no payload.
JOBS_CHANNEL: Final = "compactory_jobs"
#: NOTIFY channel of the outbox; no payload.
OUTBOX_CHANNEL: Final = "compactory_outbox"
#: NOTIFY channel; the payload is the root table's oid in decimal.
WAKEUP_CHANNEL: Final = "compactory_source"
