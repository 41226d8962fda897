"""``--listen`` of workers: where their probes, metrics and status are served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

from ..context.flags import option

if TYPE_CHECKING:
    from compactory.worker import Worker
    from compactory_api.listen import Listen
    from compactory_api.protocol.access import Tokens

__all__ = ["ListenOption", "health_on", "listen_on"]

ListenOption = Annotated[
    str | None,
    option("--listen", metavar="HOST:PORT", help="Serve /livez, /readyz, /metrics and /v1/status at this address."),
]


def listen_on(text: str | None) -> Listen | None:
    """Read HOST:PORT, None where nothing is given. Raises ConfigError."""
    from compactory_api.listen import Listen

    return None if text is None else Listen.parse(text)


def health_on(place: Listen | None, tokens: Tokens) -> Callable[[Sequence[Worker]], AbstractContextManager[object]]:
    """Return what shows workers on ``place`` while its block runs, or nothing where no place is given."""
    if place is None:
        return lambda _workers: nullcontext()
    from compactory_api.listener import Listener

    return lambda workers: Listener(place, workers, tokens)
