"""The sink: a topic's effect on Postgres, exactly once. The offset is stored in the transaction of the records.

`TransactionalSink` calls a handler of yours; ``compactory sink run`` writes tables. docs/sink.md says how.
"""

from .failure import RecordRefused, SinkStopped
from .record import Records, SinkRecord
from .sink import TransactionalSink

__all__ = ["RecordRefused", "Records", "SinkRecord", "SinkStopped", "TransactionalSink"]
