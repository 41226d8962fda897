"""Reads the SQL files of this package: named queries and templates.

Each query of a file begins with ``-- name: <name>``, followed by comment lines that describe it. :func:`query` leaves
out both, because a per cent sign in a description would be taken for a placeholder. It leaves out the last semicolon
too, so that a query can be wrapped in ``COPY (…) TO STDOUT``.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib import resources
from typing import LiteralString, cast

__all__ = ["query", "query_names", "read", "statements"]

_NAME = re.compile(r"^-- name:[ \t]*(?P<name>\S+)[ \t]*$", re.MULTILINE)


def query(name: str) -> LiteralString:
    """Return the text of the named query. Raises KeyError, which suggests the nearest name."""
    queries = _queries()
    if name not in queries:
        near = difflib.get_close_matches(name, queries, n=1)
        raise KeyError(f"no query is named {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return queries[name]


def query_names() -> tuple[str, ...]:
    """Return the names of all queries, sorted."""
    return tuple(sorted(_queries()))


@cache
def read(path: str) -> LiteralString:
    """Return the text of a file of this package, such as ``templates/terminal_acquirer.sql``.

    The type is LiteralString because package data can be trusted like code.
    """
    text = (resources.files("compactory_sql") / path).read_text(encoding="utf-8")
    return cast("LiteralString", text)  # type: ignore[redundant-cast]  # mypy sees str


def statements(template: str, **values: object) -> tuple[LiteralString, ...]:
    """Return the statements of ``templates/<template>.sql`` with ``values`` in place of the names in braces.

    The caller quotes the values. A blank line divides statements. Comments and semicolons are left out.
    """
    parts = read(f"templates/{template}.sql").strip().split(";\n\n")
    rendered = (_body(part).format(**values) for part in parts)
    return tuple(cast("LiteralString", text) for text in rendered)  # type: ignore[redundant-cast]  # as above


@cache
def _queries() -> dict[str, LiteralString]:
    queries: dict[str, LiteralString] = {}
    for file in sorted((resources.files("compactory_sql") / "queries").iterdir(), key=lambda item: item.name):
        if not file.name.endswith(".sql"):
            continue
        for name, text in _split(read(f"queries/{file.name}")).items():
            if name in queries:
                raise ValueError(f"{file.name}: a query named {name!r} exists already")
            queries[name] = text
    return queries


def _split(text: LiteralString) -> dict[str, LiteralString]:
    headers = list(_NAME.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    queries: dict[str, LiteralString] = {}
    for header, end in zip(headers, ends, strict=True):
        if header["name"] in queries:
            raise ValueError(f"two queries are named {header['name']!r}")
        queries[header["name"]] = _body(text[header.end() : end])
    return queries


def _body(text: LiteralString) -> LiteralString:
    lines = text.strip().splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith("--")):
        del lines[0]
    return "\n".join(lines).rstrip().removesuffix(";")
