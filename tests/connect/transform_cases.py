"""Records through a chain of transforms without a server: from columns and texts to what is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compactory_connectors.connect.converters import Converter
from compactory_connectors.connect.record.record import Cell, Kind, Node, Record, RowError, StructNode, cells
from compactory_connectors.connect.record.schema import Field, Schema, Type
from compactory_connectors.connect.transforms import TransformSpec, read_transforms
from compactory_connectors.connect.transforms.branches import (
    Failed,
    case_without_nulls,
    cases_of,
    deciding_cells,
    leaves,
)
from compactory_connectors.source.mapping.column_type import column_cell
from compactory_connectors.source.mapping.row_function import RowCompiler, RowFunctions
from compactory_connectors.source.postgres.catalog import Column

__all__ = ["Refused", "attempted", "chain_of", "column_node", "functions_of", "raw_row", "source_record"]

Described = Mapping[str, Any]
"""A column: name, type, whether it is required; of a struct its columns."""


@dataclass(frozen=True)
class Refused(Exception):
    """A chain that is refused before any row is read."""

    problems: tuple[str, ...]


def source_record(columns: Sequence[Described], topic: str = "t") -> Record:
    """The record of a table with these columns, as the connector makes it."""
    nodes = [column_node(column) for column in columns]
    fields = tuple(Field(column["name"], node.schema) for column, node in zip(columns, nodes, strict=True))
    value = StructNode(Schema(type=Type.STRUCT, name="t", fields=fields), tuple(nodes))
    return Record(topic=topic, key=None, value=value)


def column_node(column: Described) -> Node:
    """A column; a struct, which is never null, stands in a column of its own whose text is JSON."""
    if column["type"] == "struct":
        return _struct(column, column["name"], ())
    return _plain(column)


def _plain(column: Described) -> Cell:
    kind, _, scale = column["type"].partition(":")
    typmod = (int(column.get("precision", "0")) << 16 | int(scale)) + 4 if scale else -1
    required = bool(column.get("required"))
    cell = column_cell(Column(name=column["name"], type=kind, typmod=typmod, not_null=required))
    assert cell is not None
    return cell


def _struct(column: Described, outer: str, path: tuple[str, ...]) -> StructNode:
    members = [_member(item, outer, (*path, item["name"])) for item in column["columns"]]
    fields = tuple(Field(item["name"], node.schema) for item, node in zip(column["columns"], members, strict=True))
    schema = Schema(type=Type.STRUCT, optional=True, fields=fields)
    return StructNode(schema, tuple(members))


def _member(column: Described, outer: str, path: tuple[str, ...]) -> Node:
    if column["type"] == "struct":
        return _struct(column, outer, path)
    cell = _plain(column)
    decode = cell.decode
    return _of_json(replace(cell, column=outer), path, lambda text: decode(text.encode()))


def _of_json(cell: Cell, path: tuple[str, ...], decode: Callable[[Any], Any]) -> Cell:
    def read(raw: bytes) -> Any:
        found: Any = json.loads(raw)
        for step in path:
            found = None if found is None else found[step]
        return None if found is None else decode(found)

    return replace(cell, kind=Kind.CONVERTED, decode=read)


def raw_row(columns: Sequence[Described], row: Mapping[str, Any]) -> list[bytes | None]:
    """A row of the corpus as raw columns."""
    return [_raw(row.get(column["name"])) for column in columns]


def _raw(value: Any) -> bytes | None:
    if value is None:
        return None
    return (json.dumps(value) if isinstance(value, dict) else str(value)).encode()


def chain_of(
    transforms: Sequence[Mapping[str, str]],
    predicates: Mapping[str, Mapping[str, str]] | None = None,
    function: str | None = None,
) -> tuple[TransformSpec, ...]:
    """The chain; raises Refused with every problem of the options."""
    settings = {f"x{n}.{key}": value for n, options in enumerate(transforms) for key, value in options.items()}
    conditions = {f"{name}.{key}": text for name, given in (predicates or {}).items() for key, text in given.items()}
    aliases = [f"x{n}" for n in range(len(transforms))]
    specs, problems = read_transforms(
        aliases, settings, predicates=list(predicates or {}), predicate_options=conditions, function=function
    )
    if problems:
        raise Refused(tuple(problems))
    return specs


def functions_of(
    record: Record, specs: Sequence[TransformSpec], converter: Converter, columns: Sequence[Described]
) -> RowFunctions:
    """What rows become under one converter for both halves; raises Refused where usual rows would fail."""
    case = cases_of(record, specs)
    found = case_without_nulls(case)
    if isinstance(found, Failed):
        raise Refused((found.reason,))
    positions = {column["name"]: index for index, column in enumerate(columns)}
    used = [*deciding_cells(case), *(cell for leaf in leaves(case) for cell in _used(leaf.record))]
    assert {cell.column for cell in used} <= positions.keys()
    compiler = RowCompiler(converter, converter, positions, routed=True)
    functions = compiler.compile(case)
    if compiler.problems:
        raise Refused(tuple(compiler.problems))
    return functions


def _used(record: Record) -> Iterator[Cell]:
    for node in (record.key, record.value):
        yield from cells(node)


def attempted(function: Callable[[list[bytes | None]], Any], raw: list[bytes | None]) -> Any:
    """What a function of a row gives, or the RowError that it raises."""
    try:
        return function(raw)
    except RowError as error:
        return error
