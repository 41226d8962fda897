"""The sink: a topic's effect on Postgres, exactly once. The offset is stored in the transaction of the records.

`TransactionalSink` calls a handler of yours; ``compactory sink run`` writes tables. docs/sink.md says how.
"""

from .record import RecordRefused, Records, SinkRecord, SinkStopped
from .sink import TransactionalSink

__all__ = ["RecordRefused", "Records", "SinkRecord", "SinkStopped", "TransactionalSink"]
