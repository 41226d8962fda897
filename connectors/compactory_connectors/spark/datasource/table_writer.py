"""``df.write.format("compactory")`` into a table: tasks stage rows beside it, and the commit merges them.

Spark calls `writer`, `write` and `commit` in processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from compactory.errors import ConfigError
from compactory_connectors.postgres.jdbc_url import Connection, parse_url
from compactory_connectors.source.config.files import load_connector

from ..into_table.copying import Copying, Done
from ..into_table.to_postgres import PostgresTarget
from .options import write_problems

__all__ = ["TableWriter", "table_writer"]

_NAMES: Final = ("table", "connector", "url", "user", "password", "key", "active", "loadId", "wait", "lockTimeout")
_NESTED: Final = (t.StructType, t.ArrayType, t.MapType, t.VariantType)


@dataclass
class _Copied(WriterCommitMessage):
    """The report of a task."""

    done: Done


@dataclass
class TableWriter(DataSourceArrowWriter):
    """Upserts the rows of a DataFrame into a table, all of them or none. Made by :func:`table_writer`."""

    target: Mapping[str, Any] = field(repr=False)
    names: Sequence[str]
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
            if target.repeated() is None:
                copied = [cast("_Copied", message).done for message in messages]
                target.take_up(self.stem, self.names, copied)
                target.write()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave what was staged to the next load, which drops it."""


def table_writer(options: Mapping[str, str], schema: t.StructType, overwrite: bool) -> TableWriter:
    """Check everything and make the staging table. Raises ConfigError with every problem, Unreachable."""
    given = {name.lower(): value for name, value in options.items()}
    names = schema.fieldNames()
    problems = write_problems(options, _NAMES, ("wait", "lockTimeout"), overwrite)
    if not given.get("table"):
        problems.append("option table is missing: the table that rows are upserted into")
    if ("url" in given) == ("connector" in given):
        problems.append("give option url, or connector with the file of a connector")
    problems += [
        f"column {field.name} is nested: write it as text, by to_json"
        for field in schema.fields
        if isinstance(field.dataType, _NESTED)
    ]
    if problems:
        raise ConfigError(problems)
    described: dict[str, Any] = {
        "connection": _connection(given),
        "table": given["table"],
        "key": [name.strip() for name in given["key"].split(",")] if "key" in given else None,
        "active": given.get("active"),
        "load_id": given.get("loadid"),
        "wait": float(given.get("wait", 30)),
        "lock_timeout": float(given.get("locktimeout", 30)),
    }
    with closing(PostgresTarget(**described)) as target:
        stem, copying = target.open(names)
    return TableWriter(described, names, stem, copying)


def _connection(given: Mapping[str, str]) -> Connection:
    if "connector" in given:
        return load_connector(Path(given["connector"])).connection
    try:
        return parse_url(given["url"], given.get("user"), given.get("password"))
    except ValueError as error:
        raise ConfigError(f"option url: {line}" for line in str(error).splitlines()) from None
