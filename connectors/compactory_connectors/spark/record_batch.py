"""Batches of columns or rows in the types of a schema, as Arrow: the input and output of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

__all__ = ["Batches", "Task", "in_arrow", "of_columns", "of_rows"]

Batches: TypeAlias = Iterator[pa.RecordBatch]

Task: TypeAlias = Callable[[Batches], Batches]
"""The function that executors run for each of a frame's partitions."""


def in_arrow(rows: DataFrame, task: Task, schema: pa.Schema) -> DataFrame:
    """The rows that the task makes of the frame's partitions; they have the columns of the schema."""
    return rows.mapInArrow(task, from_arrow_schema(schema))


def of_columns(columns: Iterable[Any], schema: pa.Schema) -> pa.RecordBatch:
    """The batch of these columns, all of one length."""
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema)


def of_rows(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The batch of these rows, also of none."""
    return of_columns(list(zip(*rows, strict=True)) or [()] * len(schema), schema)
