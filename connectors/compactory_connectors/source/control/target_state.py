"""What an operator wants a connector to be, kept in the offsets topic, so that a pause survives the process.

The key of its record is ``["<connector>",{"protocol":"1","state":"target"}]``, beside its tables' offsets; no record,
or a tombstone, means running. Nothing here does input or output.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import orjson

__all__ = ["Target", "TargetState", "target_key"]


class Target(Enum):
    """What a connector should be."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """A target, and since when (seconds since 1970, by the clock of the process that was told)."""

    target: Target = Target.RUNNING
    since: float | None = None

    @property
    def paused(self) -> bool:
        """Whether nothing is to be published."""
        return self.target is Target.PAUSED

    def dumps(self) -> bytes | None:
        """The record's value; None is a tombstone."""
        if self.target is Target.RUNNING:
            return None
        return orjson.dumps({"target": self.target.value, "since": self.since})

    @classmethod
    def loads(cls, value: bytes | None) -> TargetState:
        """The reverse. What can't be read was written by a newer version: it is a pause, for nothing is lost by one."""
        if value is None:
            return cls()
        try:
            fields = orjson.loads(value)
            return cls(target=Target(fields["target"]), since=float(fields["since"]))
        except (ValueError, TypeError, KeyError):
            return cls(target=Target.PAUSED)


def target_key(connector: str) -> bytes:
    """The key of a connector's record."""
    return orjson.dumps([connector, {"protocol": "1", "state": "target"}])
