"""The protocol of every long-running part: probes, status and metrics as pure data, and the orders that it takes.

A server (HTTP, a console) knows workers only by this protocol, and workers know nothing of the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = ["Metric", "Operated", "Order", "Verb", "Worker"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric with its present values.

    ``name`` is the full Prometheus name (a counter's ends in ``_total``); ``samples`` maps the values of ``labels``, in
    their order, to the figure. Seconds are seconds, sizes are bytes.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()
    samples: Mapping[tuple[str, ...], float]


class Worker(Protocol):
    """A long-running part. All methods may be called by any thread, answer from memory and never wait."""

    @property
    def name(self) -> str:
        """The name in status, such as ``source terminals``."""
        ...

    def live(self) -> bool:
        """Return True while it can do its work; False asks for a restart. An outage of another system is no reason."""
        ...

    def ready(self) -> bool:
        """Return True once it does its work, also through later outages of other systems."""
        ...

    def blocking(self) -> list[dict[str, Any]]:
        """Return what readiness waits for; empty where there is nothing to name."""
        ...

    def status(self) -> dict[str, Any]:
        """Return the present state as JSON can hold it. No values of entries."""
        ...

    def metrics(self) -> Iterable[Metric]:
        """Return the metrics; labels tell apart workers of one kind."""
        ...


class Verb(Enum):
    """The orders to a part that publishes; the words are Kafka Connect's where it has one."""

    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"
    APPROVE = "approve"
    RESEND = "resend"


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """An operator's order. ``table`` None is about all of it; ``removal`` and ``keys`` are for APPROVE and RESEND."""

    verb: Verb
    table: str | None = None
    removal: str | None = None
    keys: tuple[bytes, ...] = ()


@runtime_checkable
class Operated(Worker, Protocol):
    """A worker that takes orders. All methods may be called by any thread and never wait."""

    @property
    def connector(self) -> str:
        """The name of its connector, which orders give."""
        ...

    def tables(self) -> list[str]:
        """Return the tables that an order may name."""
        ...

    def admin_status(self) -> dict[str, Any]:
        """Return the status with values of rows, which only an administrator may read."""
        ...

    def run_command(self, order: Order) -> None:
        """Take an order, to be carried out soon. Raises OrderRefused where the state does not allow it."""
        ...
