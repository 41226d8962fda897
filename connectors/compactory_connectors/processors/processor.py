"""`Processor`: a function for the events of a topic, and its rules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from compactory.codec.decoding import decoder
from compactory.directory import Directory
from compactory.errors import ConfigError
from compactory_connectors.retry import Retry

from .event import Event, Failed, Output, Refused
from .pending import StoredEvent

__all__ = ["Processor", "Retry", "processor"]

Function = Callable[[Event], Any]

_RETRY = Retry(max_attempts=10, first=0.5, limit=60.0)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Processor:
    """A function and its rules. Immutable; run by a `ProcessRunner` or ``compactory process run``.

    ``function``     takes an `Event`, sync or async; returns an `Output`, several or None. In a chain it returns the
                     value of the outcome instead. The coroutines of a runner share one event loop
    ``name``         of the consumer group: processes of one name share the partitions and the unfinished events
    ``topic``        the topic of the events
    ``decode``       for an event's value: dict, a class (as of a `Directory`), or a callable that takes bytes
    ``created``, ``failed``  the topics of a chain. The outcome of each event is written to one of them, with the
                     event's id in field ``event``, and removed from the other
    ``retry``        the attempts, and the pauses between them
    ``concurrency``  calls at a time, of different keys
    ``start``        for partitions that the group has never read

    Raises ConfigError with all problems.
    """

    function: Function
    name: str
    topic: str
    decode: Any = dict
    created: str | None = None
    failed: str | None = None
    retry: Retry = _RETRY
    concurrency: int = 8
    start: Literal["earliest", "latest"] = "earliest"

    def __post_init__(self) -> None:
        problems = list(self.retry.problems())
        if not _NAME.fullmatch(self.name):
            problems.append("name: must have 1 to 200 letters, digits, dots, dashes or underscores")
        if not self.topic:
            problems.append("topic: must not be empty")
        if self.concurrency < 1:
            problems.append("concurrency: must be at least 1")
        if (self.created is None) != (self.failed is None) or (self.created and self.created == self.failed):
            problems.append("created and failed: a chain needs both, and they must be different topics")
        if self.topic in (self.created, self.failed):
            problems.append(f"created and failed: {self.topic!r} is the topic that is read")
        if problems:
            raise ConfigError(f"processor {self.name!r}: {problem}" for problem in problems)

    def __call__(self, event: Event) -> Any:
        return self.function(event)

    def decoder(self) -> Callable[[bytes], Any]:
        return decoder(Directory(self.topic, decode=self.decode))

    def outputs(self, event: Event, wait_for: Callable[[Awaitable[Any]], Any]) -> list[Output]:
        """Call the function and return outputs; ``wait_for`` returns the result of a coroutine.

        Raises the function's errors, and an error for a result that fits no record.
        """
        if self.created is None:
            return list(_listed(self._result(event, wait_for)))
        try:
            value = self._result(event, wait_for)
        except Failed as error:
            return self.failure(event, str(error))
        if value is None and event.value is not None:
            raise Refused("the function returned None, and the outcome of an event that has a value needs one")
        if not isinstance(value, Mapping | None):
            raise Refused(f"the function returned {type(value).__name__}, and an outcome is a mapping")
        return self._outcome(event, value, None)

    def failure(self, event: Event | StoredEvent, reason: str | None) -> list[Output]:
        return [] if self.failed is None else self._outcome(event, None, {"error": reason})

    def _result(self, event: Event, wait_for: Callable[[Awaitable[Any]], Any]) -> Any:
        result = self.function(event)
        return wait_for(result) if inspect.isawaitable(result) else result

    def _outcome(self, event: Event | StoredEvent, created: Any, failed: Any) -> list[Output]:
        assert self.created is not None
        assert self.failed is not None
        return [
            Output(topic=topic, key=event.key, value=None if value is None else {**value, "event": event.id})
            for topic, value in ((self.created, created), (self.failed, failed))
        ]


def processor(topic: str, *, name: str | None = None, **rules: Any) -> Callable[[Function], Processor]:
    """Return a decorator that makes a `Processor` of a function. ``name`` defaults to the function's name."""
    return lambda function: Processor(function=function, name=name or function.__name__, topic=topic, **rules)


def _listed(result: Any) -> Iterator[Output]:
    listed = () if result is None else (result,) if isinstance(result, Output) else result
    if not isinstance(listed, Iterable):
        raise Refused(f"the function returned {type(result).__name__}, not an Output, several or None")
    for item in listed:
        if not isinstance(item, Output):
            raise Refused(f"the function returned {type(item).__name__} among its outputs")
        yield item
