"""The outbox: messages that are published in a Postgres transaction and sent to Kafka once it has committed.

`Outbox` writes messages in the caller's transaction, `OutboxRelay` sends them. See docs/outbox.md.
"""

from compactory_connectors.postgres.handled import note_handled

from .message import OutboxMessage
from .publishing import Outbox
from .relay import OutboxRelay

__all__ = ["Outbox", "OutboxMessage", "OutboxRelay", "note_handled"]
