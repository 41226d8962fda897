"""The interface of converters: each compiles one half of a record into a function of a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Literal, Self, TypeAlias

from ..record.record import Node
from ..record.row_value import Row
from ..setting import honoured

__all__ = ["SCHEMAS_ENABLE", "Converter", "Half", "Render"]

SCHEMAS_ENABLE = honoured("schemas.enable", "no effect: JsonConverter's option", "false")
"""Connect's configurations give it to whatever converter there is, and Connect takes no notice."""

Render: TypeAlias = Callable[[Row], bytes | None]
"""A row → what goes to Kafka; None where the record has no key or value."""


Half: TypeAlias = Literal["key", "value"]


class Converter(ABC):
    """One converter with its options read. Immutable."""

    __slots__ = ()

    def at(self, topic: str, half: Half) -> Self:
        """The converter for keys or values of one topic: a schema registry keeps schemas by topic."""
        del topic, half
        return self

    def dry(self) -> Self:
        """The converter for a dry run: it writes the same, and changes nothing anywhere."""
        return self

    @abstractmethod
    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """The function that writes ``node``; ``positions`` says where in a row each column stands.

        Raises ValueError for a record that the Java class would refuse whatever the row, the function RowError for a
        value that it would fail on.
        """
