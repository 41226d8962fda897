"""The interface of converters: each compiles one half of a record into a function of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, Protocol, Self, TypeAlias

from ...setting import Setting, honoured
from ..record import Node

__all__ = ["SCHEMAS_ENABLE", "Converter", "Half", "Render", "Topicless"]

SCHEMAS_ENABLE = honoured("schemas.enable", "no effect: JsonConverter's option", "false")
"""Connect's configurations give it to whatever converter there is, and Connect takes no notice."""

Render: TypeAlias = Callable[[Sequence[bytes | None]], bytes | None]
"""Raw columns of a row, in Postgres text format → what goes to Kafka; None where the record has no key or value."""


Half: TypeAlias = Literal["key", "value"]


class Converter(Protocol):
    """One converter with its options read. Immutable."""

    options: ClassVar[tuple[Setting, ...]]

    def at(self, topic: str, half: Half) -> Converter:
        """The converter for keys or values of one topic: a schema registry keeps schemas by topic."""
        ...

    def dry(self) -> Converter:
        """The converter for a dry run: it writes the same, and changes nothing anywhere."""
        ...

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """The function that writes ``node``; ``positions`` says where in a row each column stands.

        Raises ValueError for a record that the Java class would refuse whatever the row, the function RowError for a
        value that it would fail on.
        """
        ...


class Topicless:
    """A converter that writes the same to every topic."""

    __slots__ = ()

    def at(self, topic: str, half: Half) -> Self:
        """Itself."""
        del topic, half
        return self

    def dry(self) -> Self:
        """Itself."""
        return self
