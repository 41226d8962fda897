"""OpenTelemetry spans for a service that has the package ``opentelemetry-api``; without it nothing is done at all.

Spans: ``compactory.start``, ``compactory.rebuild``, ``compactory.barrier``, ``compactory.wait_for``,
``compactory.put``, ``compactory.delete``, ``compactory.put_many``. Lookups have none: they are memory reads. Attributes
begin with ``compactory.``. No key and no value gets into a span, nor the text of an error, which may quote one.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["annotate", "passed", "spanned"]

F = TypeVar("F", bound=Callable[..., Any])
_SCOPE = "compactory"


def _opentelemetry() -> Any:
    """Return the package's module of traces; None where there is none."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


_trace = _opentelemetry()


def spanned(name: str) -> Callable[[F], F]:
    """Return a function, or coroutine function, that runs in a span; the same one where there is no OpenTelemetry."""

    def decorated(function: F) -> F:
        if _trace is None:
            return function
        if not inspect.iscoroutinefunction(function):
            return _span(name)(function)

        @wraps(function)
        async def waiting(*args: Any, **kwargs: Any) -> Any:
            with _span(name):
                return await function(*args, **kwargs)

        return cast("F", waiting)

    return decorated


def annotate(**attributes: Any) -> None:
    """Add attributes to the span that the caller runs in."""
    if _trace is not None:
        _trace.get_current_span().set_attributes(_named(attributes))


def passed(name: str, seconds: float, **attributes: Any) -> None:
    """Record a span of ``seconds`` that ends now."""
    if _trace is None:
        return
    end_time = time.time_ns()
    span = _trace.get_tracer(_SCOPE).start_span(
        f"{_SCOPE}.{name}", attributes=_named(attributes), start_time=end_time - int(seconds * 1e9)
    )
    span.end(end_time)


@contextmanager
def _span(name: str) -> Iterator[None]:
    tracer = _trace.get_tracer(_SCOPE)
    with tracer.start_as_current_span(
        f"{_SCOPE}.{name}", record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except BaseException as error:
            span.set_status(_trace.Status(_trace.StatusCode.ERROR, type(error).__name__))
            raise


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    return {f"{_SCOPE}.{name}": value for name, value in attributes.items()}
