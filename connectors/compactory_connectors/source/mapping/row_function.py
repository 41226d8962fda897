"""From the cases of a table's rows to functions of a row: the bytes for Kafka, and their topic.

A record is a key and a value. If transforms choose among topics, it is a key, a value, a topic and no headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from compactory.errors import CompactoryError
from compactory_connectors.connect.converters import Converter, Half, Render
from compactory_connectors.connect.record.record import Record, RowError
from compactory_connectors.connect.record.row_value import Row, null_test
from compactory_connectors.connect.transforms.branches import Case, Dropped, Failed, Fork
from compactory_connectors.kafka.producer_record import ProducerRecord

from .function_call import class_and_place, compile_call

__all__ = ["Row", "RowCompiler", "RowFunctions"]

_PASSED_ON = (RowError, CompactoryError, MemoryError)
"""Errors of a row, and errors that no single row causes."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RowFunctions:
    """The functions of a row's raw columns. Each raises RowError where the real connector's task would fail."""

    render: Callable[[Row], ProducerRecord | None] = field(repr=False)
    """Returns key and value, and the topic where rows go to several; None: a Filter drops the row."""
    render_key: Render = field(repr=False)
    """Returns the key bytes; None where there is no key, or a Filter drops the row."""
    render_deletion: Callable[[Row], ProducerRecord | None] = field(repr=False)
    """Returns the tombstone of a deleted row; None: a Filter drops it."""


class RowCompiler:
    """Makes functions of cases; ``problems`` are the reasons why the usual rows of a table would fail."""

    def __init__(self, key: Converter, value: Converter, positions: Mapping[str, int], *, routed: bool) -> None:
        self._key = key
        self._value = value
        self._positions = positions
        self._routed = routed
        self.problems: list[str] = []

    def compile(self, case: Case, *, usual: bool = True) -> RowFunctions:
        """Return the functions of ``case``; an unusual case that does not fit fails row by row."""
        if isinstance(case, Fork):
            return self._fork(case, usual=usual)
        if isinstance(case, Dropped):
            return RowFunctions(_nothing, _nothing, _nothing)
        if isinstance(case, Failed):
            return _failing(case.reason)
        problems: list[str] = []
        key = self._half("key", case.record, problems)
        value = self._half("value", case.record, problems)
        if not problems:
            return self._leaf(case.record, key, value)
        if usual:
            self.problems += problems
        return _failing(problems[0])

    def _half(self, half: Half, record: Record, problems: list[str]) -> Render:
        """Return the converter of a half, for the topic that the row goes to: a registry keeps schemas by topic."""
        converter, node = (self._key, record.key) if half == "key" else (self._value, record.value)
        try:
            return converter.at(record.topic, half).compile(node, self._positions)
        except ValueError as error:
            problems.append(f"{half}.converter: {error}")
            return _nothing

    def _leaf(self, record: Record, key: Render, value: Render) -> RowFunctions:
        """Return the functions of a leaf. Its plainest form is the way of nearly every row, so it does nothing else."""
        routing: tuple[Any, ...] = (record.topic, []) if self._routed else ()
        deletion = _contained(lambda raw: cast("ProducerRecord", (key(raw), None, *routing)))
        if record.function is None and not self._routed:
            return RowFunctions(_plain(key, value), _contained(key), deletion)
        if record.function is None:
            values = _in_tuple(value)
        else:
            values = compile_call(record, self._value.at(record.topic, "value"), self._positions)

        def routed_record(raw: Row) -> Any:
            returned = values(raw)
            return None if returned is None else (key(raw), returned[0], *routing)

        return RowFunctions(_contained(routed_record), _contained(key), deletion)

    def _fork(self, fork: Fork, *, usual: bool) -> RowFunctions:
        null, not_null = self.compile(fork.null, usual=False), self.compile(fork.not_null, usual=usual)
        is_null = null_test(fork.cell, self._positions)
        return RowFunctions(
            _contained(lambda raw: null.render(raw) if is_null(raw) else not_null.render(raw)),
            _contained(lambda raw: null.render_key(raw) if is_null(raw) else not_null.render_key(raw)),
            _contained(lambda raw: null.render_deletion(raw) if is_null(raw) else not_null.render_deletion(raw)),
        )


def _in_tuple(value: Render) -> Callable[[Row], tuple[bytes | None] | None]:
    return lambda raw: (value(raw),)


def _contained(function: Callable[[Row], _Result]) -> Callable[[Row], _Result]:
    """Return the function with any exception that a row causes raised as its RowError."""

    def call(raw: Row) -> _Result:
        try:
            return function(raw)
        except _PASSED_ON:
            raise
        except Exception as error:  # noqa: BLE001 - a row may fail in ways that nobody foresaw
            raise _row_error(error) from None

    return call


def _row_error(error: Exception) -> RowError:
    return RowError(f"it can't be converted: {class_and_place(error)}")


def _nothing(raw: Row) -> None:
    del raw


def _failing(reason: str) -> RowFunctions:
    def fail(_raw: Row) -> None:
        raise RowError(reason)

    return RowFunctions(fail, fail, fail)


def _plain(key: Render, value: Render) -> Callable[[Row], ProducerRecord]:
    """Return what :func:`_contained` would make, with one call less for nearly every row."""

    def record(raw: Row) -> ProducerRecord:
        try:
            return key(raw), value(raw)
        except _PASSED_ON:
            raise
        except Exception as error:  # noqa: BLE001 - see `_contained`
            raise _row_error(error) from None

    return record
