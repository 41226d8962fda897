"""A client of Compactory's HTTP API: typed values, own writes are read, errors of the one tree. Needs httpx2."""

from compactory_client.client import AsyncClient, AsyncEntries, Client, Entries
from compactory_client.exchange import Outcome, Stored, WriteResult

__all__ = ["AsyncClient", "AsyncEntries", "Client", "Entries", "Outcome", "Stored", "WriteResult"]
