"""The outbox: what a Postgres transaction publishes, Kafka gets once the transaction has committed.

`Outbox` writes messages in the caller's transaction, `OutboxRelay` sends them. docs/outbox.md says how.
"""

from compactory_connectors.postgres.handled import note_handled

from .message import OutboxMessage
from .publishing import Outbox
from .relay import OutboxRelay
from .rules import TopicRules

__all__ = ["Outbox", "OutboxMessage", "OutboxRelay", "TopicRules", "note_handled"]
