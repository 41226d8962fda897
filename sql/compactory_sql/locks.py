"""Classes of advisory locks and NOTIFY channels. SQL functions contain the same values, and a test compares them.

An advisory lock has a class and a key, of four bytes each. The classes spell ``CMP?`` in ASCII.
"""

from __future__ import annotations

from typing import Final

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
]

#: Exclusive, key: oid of the root table. Held by a source while it sleeps until it is notified.
WAKEUP_LOCK_CLASS: Final = 0x434D5057
#: Shared, key: digest of the connector's name. Held by every source that runs.
SOURCE_LOCK_CLASS: Final = 0x434D5053
#: Exclusive, same key. Held by the source that publishes, where it can't write a lease row.
LEASE_LOCK_CLASS: Final = 0x434D504C
#: Exclusive, key: 0. Held while migrations are applied.
INSTALL_LOCK_CLASS: Final = 0x434D5049
#: Exclusive, key: oid of the table. Held while a table is adopted.
ADOPT_LOCK_CLASS: Final = 0x434D5041
#: Exclusive, key: oid of the table. Held while rows are loaded into a table.
LOAD_LOCK_CLASS: Final = 0x434D5042
#: Exclusive, key: 0. Held by a relay of the outbox while it sleeps until it is notified. Key 1: while it publishes
#: scheduled messages.
OUTBOX_LOCK_CLASS: Final = 0x434D504F
#: Exclusive, key: 0. Held by an executor of jobs while it sleeps until it is notified.
JOBS_LOCK_CLASS: Final = 0x434D504A
#: Exclusive, key: digest of a group's name. Held by an executor while it claims jobs of the group.
JOB_GROUP_LOCK_CLASS: Final = 0x434D5047
#: Exclusive, key: digest of a limit. Held by an executor while it claims jobs under the limit.
JOB_LIMIT_LOCK_CLASS: Final = 0x434D504E

#: Channel that wakes executors of jobs. Payload "limits": limits have changed; "slot EXECUTOR LIMIT": this executor has
#: ended a job under this limit.
JOBS_CHANNEL: Final = "compactory_jobs"
#: Channel that wakes relays of the outbox; no payload.
OUTBOX_CHANNEL: Final = "compactory_outbox"
#: Channel that tells running processes of a pause or a resume; the payload is the kind.
PAUSED_CHANNEL: Final = "compactory_paused"
#: Channel that wakes sources; the payload is the oid of the root table, in decimal.
WAKEUP_CHANNEL: Final = "compactory_source"
