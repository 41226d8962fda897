"""The protocol of a load's target, a table or a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "REJECTED",
    "Change",
    "Differences",
    "DirectoryServer",
    "Mode",
    "Received",
    "Sample",
    "Target",
    "TargetColumn",
    "Written",
]

REJECTED: Final = "_compactory_rejected"
"""Column of rows that a target receives while they are checked: true where it is to leave the row out."""


class Mode(StrEnum):
    """The treatment of keys that the source lacks."""

    UPSERT = "upsert"
    """They stay as they are."""
    REPLACE = "replace"
    """They are deactivated (Postgres) or removed by a tombstone (Kafka)."""


class Change(StrEnum):
    """The change of a key by a load."""

    INSERT = "insert"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    DEACTIVATE = "deactivate"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """A column that a load may fill. ``type`` is spelt as Postgres' ``format_type`` does: ``numeric(10,2)``."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A key that a load changes, as an example; None: the key does not exist before, or not afterwards."""

    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Numbers of rows that a target has received and left out."""

    rows: int
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The changes that a load would make: numbers of keys, and some of them."""

    counts: Mapping[Change, int]
    present: int
    """Active keys of the target before the load: a share of removals is a share of these."""
    samples: Mapping[Change, Sequence[Sample]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The changes that a load has made, once readers see them."""

    counts: Mapping[Change, int]
    repeated: bool = False
    """True if this load was done before, and nothing was done now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryServer:
    """A server that writes a directory mastered in Kafka, and a token that may write."""

    url: str
    token: str | None = field(default=None, repr=False)


class Target(Protocol):
    """A table or a topic. Used by one thread: perhaps ``repeated``, ``columns`` and ``key``, perhaps ``receive``, then
    ``compare``, then perhaps ``write``.
    """

    @property
    def label(self) -> str:
        """The target's name for people: ``table public.tariffs``."""
        ...

    @property
    def columns(self) -> Sequence[TargetColumn]:
        """The columns that a load may fill, in the target's order. Raises ConfigError where every load is refused."""
        ...

    @property
    def key(self) -> Sequence[str]:
        """The columns of the natural key."""
        ...

    def repeated(self) -> Written | None:
        """Return the changes of this load if an earlier run has done it; None if none has, or that is unknown."""
        ...

    def receive(self, rows: DataFrame, mode: Mode) -> Received | None:
        """Take rows while they are checked, in one go over the source; readers of the target notice nothing.

        ``rows`` are as those of :meth:`compare`, with :data:`REJECTED`, and may have a key more than once. None: it has
        received nothing, because it does not do so, as there is a key more than once, or a row that it does not take.
        """
        ...

    def compare(self, rows: DataFrame, mode: Mode, spared: DataFrame | None = None) -> Differences:
        """Return the changes that these rows would make; readers of the target notice nothing.

        They are not read where the target has received them. ``rows`` have columns of the target's names and of the
        types that ``column_types`` says, one row a key.
        ``spared`` has the columns of the key: keys that the source has in rows that were rejected. They stay as they
        are, also with :attr:`Mode.REPLACE`; None: there are none. It may name a key twice, or one that ``rows`` has.
        """
        ...

    def write(self) -> Written:
        """Write the changes that :meth:`compare` listed. Readers of the target see all of them or none."""
        ...

    def close(self) -> None:
        """Release everything. May be called twice, and after a failure."""
        ...
