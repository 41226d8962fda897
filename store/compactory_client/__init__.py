"""A client of Compactory's HTTP API with typed values. It reads its own writes and raises the store's errors."""

from compactory.write.operation import Operation, WriterCursor
from compactory_client.client import AsyncClient, AsyncEntries, Client, Entries
from compactory_client.models import BatchResult, Outcome, Stored, WriteResult

__all__ = [
    "AsyncClient",
    "AsyncEntries",
    "BatchResult",
    "Client",
    "Entries",
    "Operation",
    "Outcome",
    "Stored",
    "WriteResult",
    "WriterCursor",
]
