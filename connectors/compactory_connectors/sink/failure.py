"""Which errors are a record's, which the outside's, and what may be said of them."""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb
from typing import NoReturn

import psycopg

from compactory.errors import CompactoryError
from compactory_connectors.database.postgres_errors import refusal

from .offsets import Moved
from .record import SinkRecord

__all__ = ["RecordRefused", "SinkStopped", "is_of_record", "reason_of", "stop_at"]

# Cardinality, data, integrity, WITH CHECK OPTION, PL/pgSQL's RAISE, and a failed statement that the handler hid.
_OF_RECORD = ("21", "22", "23", "44", "P0", "25P02")


class RecordRefused(ValueError):
    """A record that can't be written; the text says why and shows no value."""


class SinkStopped(CompactoryError):
    """A sink can't go on until somebody decides; the text names the partition and the remedy."""


def is_of_record(error: Exception) -> bool:
    """Whether other records may do better: not so where a server is away or something is set wrongly."""
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | CompactoryError | Moved):
        return False
    if isinstance(error, psycopg.Error) and error.sqlstate is not None:
        return error.sqlstate.startswith(_OF_RECORD)
    return True


def reason_of(error: Exception) -> str:
    """Why a record failed, without values."""
    if isinstance(error, RecordRefused):
        return str(error)
    if isinstance(error, psycopg.Error):
        return refusal(error)
    frames = extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"the handler raised {type(error).__name__}{place}"


def stop_at(sink: str, record: SinkRecord, reason: str) -> NoReturn:
    """Raise SinkStopped for a record that failed."""
    raise SinkStopped(
        f"sink {sink!r} stopped at offset {record.offset} of partition {record.partition} of topic {record.topic!r}:"
        f" {reason}; mend what refuses it, have failed records set aside (errors.tolerance=all in SINK.json,"
        " on_failure='set_aside' in Python), or pass over it:"
        f" compactory sink offsets set {sink} {record.topic} {record.partition} {record.offset + 1}"
    )
