"""``Filter``: drops records; with a predicate, those that match it (org.apache.kafka.connect.transforms.Filter)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...setting import Setting
from ..record import Record
from .transform import Steady

__all__ = ["Filter"]


@dataclass(frozen=True, slots=True)
class Filter(Steady):
    """Drops every record that it gets."""

    options: ClassVar[tuple[Setting, ...]] = ()

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Filter:
        """The transform, which has no options."""
        del options
        return cls()

    def apply(self, record: Record) -> None:
        """No record."""
        del record
