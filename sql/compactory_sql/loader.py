"""Reads the SQL files of this package: named queries and templates.

A query file holds any number of queries. Each begins with ``-- name: <name>``, followed by comment lines that say
what it is for; both are left out of the text that :func:`query` returns, so that a per cent sign in a description
is no placeholder. A closing semicolon is left out too, so that a query can be wrapped in ``COPY (…) TO STDOUT``.

This package is text and pure rendering: it must not import a database driver.
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
    """The text of the named query; KeyError with the nearest name when there is none."""
    queries = _queries()
    if name not in queries:
        near = difflib.get_close_matches(name, queries, n=1)
        raise KeyError(f"no query is named {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return queries[name]


def query_names() -> tuple[str, ...]:
    """The names of all queries, sorted."""
    return tuple(sorted(_queries()))


@cache
def read(path: str) -> LiteralString:
    """The text of a file of this package, such as ``templates/terminal_acquirer.sql``.

    The type says *literal* because package data is as much ours as the code is.
    """
    text = (resources.files("compactory_sql") / path).read_text(encoding="utf-8")
    return cast("LiteralString", text)  # type: ignore[redundant-cast]  # mypy takes it for str


def statements(template: str, **values: object) -> tuple[LiteralString, ...]:
    """The statements of ``templates/<template>.sql`` with names and literals, quoted already, put in.

    A blank line divides statements; comments and semicolons are left out.
    """
    parts = read(f"templates/{template}.sql").strip().split(";\n\n")
    rendered = (_body(part).format(**values) for part in parts)
    return tuple(cast("LiteralString", text) for text in rendered)  # type: ignore[redundant-cast]  # as above


@cache
def _queries() -> dict[str, LiteralString]:
    found: dict[str, LiteralString] = {}
    for file in sorted((resources.files("compactory_sql") / "queries").iterdir(), key=lambda item: item.name):
        if not file.name.endswith(".sql"):
            continue
        for name, text in _split(read(f"queries/{file.name}")).items():
            if name in found:
                raise ValueError(f"{file.name}: a query named {name!r} exists already")
            found[name] = text
    return found


def _split(text: LiteralString) -> dict[str, LiteralString]:
    heads = list(_NAME.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    split: dict[str, LiteralString] = {}
    for head, end in zip(heads, ends, strict=True):
        if head["name"] in split:
            raise ValueError(f"two queries are named {head['name']!r}")
        split[head["name"]] = _body(text[head.end() : end])
    return split


def _body(text: LiteralString) -> LiteralString:
    lines = text.strip().splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith("--")):
        del lines[0]
    return "\n".join(lines).rstrip().removesuffix(";")
