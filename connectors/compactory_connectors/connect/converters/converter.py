"""The interface of converters: a converter compiles the key or value of a record into a function of a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self, TypeAlias

from ..record.record import Node
from ..record.row_value import Row
from ..setting import Setting, honoured

__all__ = ["SCHEMAS_ENABLE", "Converter", "Half", "Render"]

SCHEMAS_ENABLE = honoured("schemas.enable", "no effect: JsonConverter's option", "false")
"""Configurations set it for every converter; Connect ignores it where it has no effect."""

Render: TypeAlias = Callable[[Row], bytes | None]
"""The function from a row to a key or value for Kafka; None for no key, or a tombstone."""


Half: TypeAlias = Literal["key", "value"]


class Converter(ABC):
    """A converter with its options. Immutable."""

    __slots__ = ()

    options: ClassVar[tuple[Setting, ...]] = ()

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        """Return the converter with these options. Raises ValueError for missing or contradictory ones."""
        del options
        return cls()

    def at(self, topic: str, half: Half) -> Self:
        """Return the converter for keys or values of one topic: a schema registry keeps schemas by topic."""
        del topic, half
        return self

    def dry(self) -> Self:
        """Return the converter for a dry run: it writes the same bytes, and changes nothing elsewhere."""
        return self

    @abstractmethod
    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """Return the function that writes ``node``; ``positions`` are the positions of columns in a row.

        Raises ValueError for a record that the Java class refuses for every row. The function raises RowError for a
        value on which the Java class fails.
        """
