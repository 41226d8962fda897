"""``df.write.format("compactory")`` into a table: tasks stage rows beside it, and the commit merges them.

Spark calls `writer`, `write` and `commit` in processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from compactory.errors import CompactoryError, ConfigError
from compactory_connectors.postgres.jdbc_url import Connection, parse_url
from compactory_connectors.source.config.files import load_connector

from ..into_table.copying import Copying, Done
from ..into_table.to_postgres import CONNECTIONS, PostgresTarget
from ..rules.limit import SHARE_OF_KEYS, Limit, missing_keys_problem
from ..target import Mode
from .options import write_problems

__all__ = ["TableWriter", "table_writer"]

_LOCATION: Final = ("table", "connector", "url", "user", "password", "key", "active")
_OPTIONS: Final = (*_LOCATION, "loadId", "wait", "lockTimeout", "connections", "maxDeactivate")
_NESTED: Final = (t.StructType, t.ArrayType, t.MapType, t.VariantType)
_WAIT: Final = 600
"""Seconds: rows are staged by then, and the other load may be a large one."""


@dataclass
class _Copied(WriterCommitMessage):
    """The report of a task."""

    result: Done


@dataclass
class TableWriter(DataSourceArrowWriter):
    """Merges the rows of a DataFrame into a table, all of them or none. Made by :func:`table_writer`.

    ``target`` are the arguments of :class:`PostgresTarget`. With :attr:`Mode.REPLACE` keys that the DataFrame lacks are
    deactivated, at most ``limit``.
    """

    target: Mapping[str, Any] = field(repr=False)
    names: Sequence[str]
    mode: Mode
    limit: Limit
    stem: str
    copying: Copying = field(repr=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one partition. Raises psycopg.Error where another attempt may succeed."""
        columns = list(self.copying.columns)
        return _Copied(self.copying.copy(batch.select(columns) for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Merge in one transaction what the tasks that Spark counts have staged.

        Raises CompactoryError, ConfigError, Unreachable; nothing was changed then.
        """
        with closing(PostgresTarget(**self.target)) as target:
            if target.repeated() is not None:
                target.discard(self.stem)
                return
            copied = [cast("_Copied", message).result for message in messages]
            differences = target.take_up(self.stem, self.names, copied, self.mode)
            refusal = missing_keys_problem(differences, self.limit, "option maxDeactivate")
            if refusal and self.mode is Mode.REPLACE:
                raise CompactoryError(f"{target.label}: {refusal}; nothing was changed")
            target.write()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 (Spark's)
        """Drop what was staged. Spark calls it after a failed commit, too."""
        with suppress(CompactoryError), closing(PostgresTarget(**self.target)) as target:  # a later load drops it
            target.discard(self.stem)

    def of_load(self, stem: str, load_id: str, former_load_id: str | None) -> TableWriter:
        """Return a writer for rows that were staged below this stem, under this id."""
        target = {**self.target, "load_id": load_id, "former_load_id": former_load_id}
        return replace(self, target=target, stem=stem)


def table_writer(options: Mapping[str, str], schema: t.StructType, overwrite: bool) -> TableWriter:
    """Check the options, the columns and the table.

    Raises ConfigError with every problem, Unreachable.
    """
    by_name = {name.lower(): value for name, value in options.items()}
    limit, problems = _limit(by_name)
    problems += write_problems(options, _OPTIONS, ("wait", "lockTimeout"), False)
    if not by_name.get("table"):
        problems.append("option table is missing: the table that rows are merged into")
    if ("url" in by_name) == ("connector" in by_name):
        problems.append("give option url, or connector with the file of a connector")
    if not by_name.get("connections", "1").isdecimal() or by_name.get("connections") == "0":
        problems.append(f"option connections must be a whole number from 1 on, not {by_name['connections']!r}")
    problems += [
        f"column {field.name} is nested: write it as text, by to_json"
        for field in schema.fields
        if isinstance(field.dataType, _NESTED)
    ]
    if problems:
        raise ConfigError(problems)
    arguments: dict[str, Any] = {
        "connection": _connection(by_name),
        "table": by_name["table"],
        "key": [name.strip() for name in by_name["key"].split(",")] if "key" in by_name else None,
        "active": by_name.get("active"),
        "load_id": by_name.get("loadid"),
        "wait": float(by_name.get("wait", _WAIT)),
        "lock_timeout": float(by_name.get("locktimeout", 30)),
        "connections": int(by_name.get("connections", CONNECTIONS)),
    }
    names, mode = schema.fieldNames(), Mode.REPLACE if overwrite else Mode.UPSERT
    with closing(PostgresTarget(**arguments)) as target:
        stem, copying = target.open(names, mode)
    return TableWriter(arguments, names, mode, limit, stem, copying)


def _limit(options: Mapping[str, str]) -> tuple[Limit, list[str]]:
    try:
        text = options.get("maxdeactivate")
        return SHARE_OF_KEYS if text is None else Limit.parse(text, "option maxDeactivate"), []
    except ConfigError as error:
        return SHARE_OF_KEYS, list(error.problems)


def _connection(options: Mapping[str, str]) -> Connection:
    if "connector" in options:
        return load_connector(Path(options["connector"])).connection
    try:
        return parse_url(options["url"], options.get("user"), options.get("password"))
    except ValueError as error:
        raise ConfigError(f"option url: {line}" for line in str(error).splitlines()) from None
