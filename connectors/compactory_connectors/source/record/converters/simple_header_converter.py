"""``org.apache.kafka.connect.storage.SimpleHeaderConverter``: what ``Values.convertToString`` gives, as UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...setting import Setting
from ..record import Cell, Constant, Java, Node, Step, StructNode
from ..schema import Type
from ..transforms.cast import caster
from .converter import Render, Topicless
from .string_converter import StringConverter

__all__ = ["SimpleHeaderConverter"]


@dataclass(frozen=True, slots=True)
class SimpleHeaderConverter(Topicless):
    """Writes texts as they are, numbers and booleans as Java does, times in ISO format, bytes in Base64."""

    options: ClassVar[tuple[Setting, ...]] = ()

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """The function that writes ``node``. Raises ValueError for structs, lists and maps."""
        return StringConverter().compile(None if node is None else _as_text(node), positions)


def _as_text(node: Node) -> Node:
    if isinstance(node, StructNode):
        raise ValueError("a struct can't be written into a header")
    if node.java is Java.STRING or (isinstance(node, Constant) and node.value is None):
        return node
    try:
        text = caster(node.java, node.schema, Type.STRING)
    except ValueError as error:
        raise ValueError(f"the field {error}") from None
    if isinstance(node, Constant):
        return replace(node, java=Java.STRING, value=text(node.value))
    return _text_cell(node, text)


def _text_cell(cell: Cell, text: Callable[[Any], str]) -> Cell:
    return replace(cell, java=Java.STRING, steps=(*cell.steps, Step(text)))
