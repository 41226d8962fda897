"""Trace context of jobs, for services that have ``opentelemetry-api``; nothing without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["attempt_span", "collects_spans", "trace_headers"]


def _opentelemetry() -> Any:
    """Return the modules ``propagate`` and ``trace``; None if the package is missing."""
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        return None
    return propagate, trace


_modules = _opentelemetry()


def trace_headers() -> dict[str, str]:
    """Return the caller's trace context as headers."""
    headers: dict[str, str] = {}
    if _modules is not None:
        _modules[0].inject(headers)
    return headers


def collects_spans() -> bool:
    """Return True if the service has set up a provider of traces. Takes a microsecond."""
    return _modules is not None and not isinstance(_modules[1].get_tracer_provider(), _modules[1].ProxyTracerProvider)


@contextmanager
def attempt_span(type_: str, attempt: int, headers: Mapping[str, str]) -> Iterator[None]:
    """Run the body in a span ``compactory.job``, a child of the span that enqueued the job."""
    if _modules is None:
        yield
        return
    propagate, trace = _modules
    with trace.get_tracer("compactory").start_as_current_span(
        "compactory.job",
        context=propagate.extract(headers),
        attributes={"compactory.type": type_, "compactory.attempt": attempt},
        record_exception=False,
        set_status_on_exception=False,
    ):
        yield
