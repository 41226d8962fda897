"""What every converter is: it compiles one half of a record into a function of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeAlias

from ..record import Node
from ..setting import Setting

__all__ = ["Converter", "Render"]

Render: TypeAlias = Callable[[Sequence[bytes | None]], bytes | None]
"""Raw columns of a row, in Postgres text format → what goes to Kafka; None where the record has no key or value."""


class Converter(Protocol):
    """One converter with its options read. Immutable."""

    options: ClassVar[tuple[Setting, ...]]

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """The function that writes ``node``; ``positions`` says where in a row each column stands.

        The function raises RowError for a value that the Java class would fail on.
        """
        ...
