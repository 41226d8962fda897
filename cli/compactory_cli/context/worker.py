"""Commands that run until SIGTERM or Ctrl-C, and ``--listen`` for their probes, metrics and status."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from pkgutil import resolve_name
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from .flags import option
from .session import refuse

if TYPE_CHECKING:
    from compactory.worker import Worker

    from .configuration import Configuration

__all__ = ["Health", "ListenOption", "either", "health_on", "import_object", "run_worker", "stopping"]

T = TypeVar("T")

ListenOption = Annotated[str | None, option("--listen", "HOST:PORT", "Serve probes, /metrics and /v1/status here.")]

Health = Callable[[Sequence["Worker"]], AbstractContextManager[object]]
"""Serves probes, metrics and status of workers while its block runs."""


def health_on(configuration: Configuration, listen: str | None) -> Health:
    """Serve workers' probes at ``--listen``, else at COMPACTORY_LISTEN, else nowhere. Raises ConfigError."""
    from compactory_api.http.listen import Listen

    if (address := listen or configuration.worker_listen) is None:
        return lambda _workers: nullcontext()
    place = Listen.parse(address)

    def show(workers: Sequence[Worker]) -> AbstractContextManager[object]:
        from compactory_api.ops.listener import Listener

        return Listener(place, workers, configuration.tokens)

    return show


def run_worker(
    part: Any, worker: Worker, health: Health, wait: Callable[[threading.Event], Any] = threading.Event.wait
) -> Any:
    """Start a relay, an executor, a sink or a processor; ``wait`` for the event that a signal sets; stop the part.

    Return the result of its ``stop``.
    """
    with stopping() as stop, health([worker]):
        part.start()
        try:
            wait(stop)
        finally:
            ended = part.stop()
    return ended


def either(over: Callable[[float], bool]) -> Callable[[threading.Event], None]:
    """Return a wait for the signal or for the end of a part; ``over(seconds)`` waits for that end."""

    def wait(stop: threading.Event) -> None:
        while not stop.wait(0.1) and not over(0.1):
            pass

    return wait


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set. A second signal is handled as before the block."""
    stop = threading.Event()
    previous_handlers = {sign: signal.getsignal(sign) for sign in (signal.SIGTERM, signal.SIGINT)}

    def ask(sign: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(sign, previous_handlers[signal.Signals(sign)])

    for sign in previous_handlers:
        signal.signal(sign, ask)
    try:
        yield stop
    finally:
        for sign, handler in previous_handlers.items():
            signal.signal(sign, handler)


def import_object(place: str, kind: type[T], example: str) -> T:
    """Return the object, of a module in the current folder or an installed one. Raises ConfigError for no ``kind``."""
    module, _, name = place.partition(":")
    kind_name = kind.__name__
    if not module or not name:
        refuse(f"{place!r} names no {kind_name}: give MODULE:NAME, such as {example}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        attribute = resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        refuse(f"{place}: {error}")
    if not isinstance(attribute, kind):
        refuse(f"{place} is not a {kind_name}, but {type(attribute).__name__}")
    return attribute
