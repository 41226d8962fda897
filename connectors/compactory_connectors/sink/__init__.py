"""The sink: applies the records of topics to Postgres, each once. The offset is stored in the records' transaction.

`TransactionalSink` calls your handler; ``compactory sink run`` writes tables. See docs/sink.md.
"""

from .record import RecordRefused, Records, SinkRecord, SinkStopped
from .sink import TransactionalSink

__all__ = ["RecordRefused", "Records", "SinkRecord", "SinkStopped", "TransactionalSink"]
