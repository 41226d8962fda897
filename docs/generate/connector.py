"""The keys of a connector JSON, from the table that the parser itself uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from compactory_connectors.source.connector_keys import SETTINGS
from compactory_connectors.source.converters import REGISTRY as CONVERTERS
from compactory_connectors.source.setting import Setting, Status

from .markdown import cell, code, page, table

__all__ = ["page_text"]

_INTRO = """\
A connector is the JSON of the Kafka Connect JDBC source connector, bare or as Connect's REST API has it
(`{"name": …, "config": {…}}`). Every key that Connect knows is in one of three groups; any other key is an error that
names the nearest one. All problems of a file are reported together, before anything is written."""

_PLACEHOLDERS = """\
`${provider:key}` and `${provider:path:key}` are looked up in this order, and the first that has the key wins:

1. the file of `--provider NAME=FILE.properties`;
2. the environment: `${tpp:reference-data.db.url}` → `TPP_REFERENCE_DATA_DB_URL`;
3. `config.providers.*` of the connector: `FileConfigProvider`, `EnvVarConfigProvider`, `DirectoryConfigProvider`."""

_TRANSFORMS = """\
`transforms`, `predicates` and `compactory.transform`: [transforms and their options](transforms.md)."""

_HEADINGS = {
    Status.HONOURED: ("Keys with an effect", "default"),
    Status.MOOT: ("Keys that are accepted and change nothing", "why"),
    Status.REFUSED: ("Keys that are refused", "why, and what to do"),
}


def page_text() -> str:
    """The page."""
    parts: list[str] = [_INTRO]
    for status, (heading, column) in _HEADINGS.items():
        rows = [_row(item) for item in SETTINGS if item.status is status]
        parts += [f"## {heading}", table(["key", "meaning", column], rows)]
    parts += ["## Placeholders", _PLACEHOLDERS]
    parts += ["## Transforms", _TRANSFORMS]
    parts += ["## Converters", table(["class", "option", "meaning", "default"], _classes(CONVERTERS))]
    return page("Connector", "`connectors/compactory_connectors/source/connector_keys.py`", *parts)


def _row(item: Setting) -> list[str]:
    if item.status is not Status.HONOURED:
        return [code(item.name), cell(item.meaning), cell(item.note)]
    return [code(item.name), cell(item.meaning), "empty" if item.default == "" else code(item.default)]


def _classes(registry: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, entry in registry.items():
        options: Iterable[Setting] = entry.options
        for option in options:
            default = "required" if option.default is None else code(option.default) if option.default else "empty"
            yield [code(name), code(option.name), cell(option.meaning), default]
