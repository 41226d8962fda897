"""Figures of running parts: each is declared once, on a field, and shown in status, metrics and probes."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar

from compactory.worker import Metric

__all__ = ["Board", "BoardWorker", "Figure", "by_label", "figures_of", "metrics_of"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric of a status' field; a counter if its name ends in ``_total``.

    ``value`` takes the field's value and the moment, for a board the board itself. It returns the figure, figures by
    the values of ``labels``, or None: no sample.
    """

    name: str
    help: str
    value: Callable[[Any, Any], float | Mapping[Any, float] | None] = lambda value, _: value
    labels: tuple[str, ...] = ()


def by_label(figure: str, *labels: str) -> Callable[[Any, Any], Mapping[Any, float]]:
    """Return the function from rows to one of their figures by the values of labels."""
    return lambda rows, _: {tuple(row[label] for label in labels): row[figure] for row in rows}


@cache
def figures_of(status_class: type[Any]) -> Sequence[tuple[str, Figure]]:
    """Return the metrics that the class's own fields declare, each with its field's name."""
    hints = inspect.get_annotations(status_class, eval_str=True)
    metadata = [(name, item) for name, hint in hints.items() for item in getattr(hint, "__metadata__", ())]
    return [(name, item) for name, item in metadata if isinstance(item, Figure)]


def metrics_of(
    prefix: str,
    figures: Iterable[tuple[str, Figure]],
    labels: tuple[str, ...],
    rows: Mapping[tuple[str, ...], Any],
    moment: Any,
) -> Iterator[Metric]:
    """Yield the metrics of rows. The keys of ``rows`` are the values of ``labels``."""
    for name, figure in figures:
        samples: dict[tuple[str, ...], float] = {}
        for values, row in rows.items():
            value = figure.value(getattr(row, name), moment)
            if isinstance(value, Mapping):
                samples |= {(*values, *_texts(key)): float(number) for key, number in value.items()}
            elif value is not None:
                samples[values] = float(value)
        yield Metric(
            name=f"{prefix}_{figure.name}",
            kind="counter" if figure.name.endswith("_total") else "gauge",
            help=figure.help,
            labels=(*labels, *figure.labels),
            samples=samples,
        )


def _texts(key: Any) -> Iterable[str]:
    return (key,) if isinstance(key, str) else map(str, key)


@dataclass(kw_only=True, eq=False)
class Board:
    """The figures of a running part. Any thread may read; values are replaced whole, or changed under the lock.

    A subclass declares figures as fields, with their metrics.
    """

    kind: ClassVar[str]
    """The begin of the metrics' names, after ``compactory_``; the label of a named part."""

    detail: str | None = None
    """The outage that is waited for, or the error that ended the part."""
    paused: Sequence[Mapping[str, str]] = ()
    """Part and name of what operators have paused."""
    is_ready: bool = False
    """True once the part has worked, also during later outages."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def note(self, **facts: Any) -> None:
        """Replace values."""
        with self._lock:
            for name, value in facts.items():
                setattr(self, name, value)

    def picture(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        names = [item.name for item in fields(self) if not item.name.startswith("_") and item.name != "is_ready"]
        with self._lock:
            return deepcopy({name: getattr(self, name) for name in names})

    def metrics(self, name: str) -> Iterator[Metric]:
        """Yield the metrics; ``name`` of the part is a label unless it is empty."""
        own_figures = figures_of(type(self))  # type: ignore[arg-type]  # mypy takes the class for unhashable
        labels, values = ((self.kind,), (name,)) if name else ((), ())
        with self._lock:
            shown = [
                *metrics_of(f"compactory_{self.kind}", own_figures, labels, {values: self}, self),
                *metrics_of("compactory", figures_of(_Pauses), (), {(): _Pauses(self.paused)}, self),
            ]
        yield from shown


@dataclass(frozen=True, slots=True)
class _Pauses:
    """The metric that all parts share."""

    names: Annotated[
        Sequence[Mapping[str, str]],
        Figure(
            "paused",
            "1 for a type or group of jobs, a topic, a sink or a processor that an operator has paused",
            lambda names, _: {(item["part"], item["name"]): 1.0 for item in names},
            ("part", "name"),
        ),
    ]


class BoardWorker:
    """Implements `compactory.worker.Worker` for a part with a board. Thread-safe."""

    def __init__(self, part: Any, name: str = "", waits_for: str = "") -> None:
        self._part = part
        self._board: Any = part.board
        self._name = name
        self._waits_for = waits_for
        self.name = f"{self._board.kind} {name}".strip()

    def live(self) -> bool:
        """Return True if the threads run, also while they wait for servers."""
        return bool(self._part.alive)

    def ready(self) -> bool:
        """Return True once the part has worked."""
        return bool(self._board.is_ready)

    def blocking(self) -> list[dict[str, Any]]:
        """Return the reasons why the part is not ready."""
        if self.ready():
            return []
        kind, detail = self._board.kind, self._board.detail
        return [{kind: self._name, "detail": detail} if self._name else {kind: detail or self._waits_for}]

    def status(self) -> dict[str, Any]:
        """Return the figures of this process, and of the tables some seconds ago."""
        picture: dict[str, Any] = self._board.picture()
        return picture

    def metrics(self) -> Iterable[Metric]:
        """Return the metrics of this process, and of the tables some seconds ago."""
        metrics: Iterable[Metric] = self._board.metrics(self._name)
        return metrics
