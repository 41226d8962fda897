"""What every transform is: options read once, then one step of the chain's compilation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from ..record import Node, Record
from ..setting import Setting

__all__ = ["Side", "Transform", "TransformError"]


class TransformError(ValueError):
    """A transform does not fit the record it gets: the text says what is missing and what there is."""


@dataclass(frozen=True, slots=True)
class Side:
    """Key or value: the half of the record that the ``$Key`` or ``$Value`` form of a transform works on."""

    name: str

    def of(self, record: Record) -> Node | None:
        """The half of ``record`` that it names."""
        return record.key if self.name == "Key" else record.value

    def put(self, record: Record, node: Node) -> Record:
        """``record`` with this half replaced."""
        return replace(record, key=node) if self.name == "Key" else replace(record, value=node)


class Transform(Protocol):
    """One transform with its options read. Immutable."""

    options: ClassVar[tuple[Setting, ...]]

    def apply(self, record: Record) -> Record:
        """The record after this transform. Raises TransformError when the record does not fit."""
        ...


Factory = Callable[[Mapping[str, Any]], Transform]
"""Builds a transform of options already parsed; raises ValueError for options that contradict each other."""
