"""The options of a store: names, defaults, meanings and checks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from compactory.directory import Directory
from compactory.loading import Loading

__all__ = ["StoreArguments", "StoreOptions", "directory_problems"]

OnBadRecord = Literal["quarantine", "fail"]
Validate = Literal["apply", "read"]
MissingTopic = Literal["fail", "wait"]
UnusableDirectory = Literal["hold", "serve"]
_CHOICES = {
    "on_bad_record": OnBadRecord,
    "validate": Validate,
    "missing_topic": MissingTopic,
    "unusable_directory": UnusableDirectory,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOptions:
    """The options of a `GlobalStore`, which takes them as keyword arguments.

    ``stall_timeout``    seconds without any progress after which ``start`` gives up
    ``start_timeout``    seconds after which ``start`` gives up in any case; None: only the stall counts
    ``on_bad_record``    ``quarantine`` keeps bad records aside and goes on; ``fail`` stops the store at the first
    ``validate``         ``apply`` decodes each value once when it is applied; ``read`` trusts the topic, which is
                         faster and gives up the guarantee about bad records
    ``tune_gc``          if True, ``start`` pauses the cyclic garbage collector, restores it afterwards, and makes
                         glibc return freed memory early
    ``missing_topic``    ``fail`` raises from ``start``; ``wait`` waits for topics that do not exist yet, as long as
                         ``start_timeout`` allows
    ``unusable_directory``  ``hold`` is not ready while a directory has only unusable records (a wrong ``key``, model
                         or format; tombstones don't count); ``serve`` serves it without entries
    ``start_stale``      if the backend has all directories complete, ``start`` returns at once with those (STALE),
                         even without Kafka, and catches up meanwhile
    ``on_progress``      called with a `Loading` some times a second while ``start`` waits, by the thread that called it
    ``polling_timeout``  seconds without asking Kafka for records after which the store counts as not `live`
    ``applying_timeout`` seconds of work on one batch after which it counts as not `live`
    """

    stall_timeout: float = 30.0
    start_timeout: float | None = None
    on_bad_record: OnBadRecord = "quarantine"
    validate: Validate = "apply"
    tune_gc: bool = True
    missing_topic: MissingTopic = "fail"
    unusable_directory: UnusableDirectory = "hold"
    start_stale: bool = False
    on_progress: Callable[[Loading], None] | None = None
    polling_timeout: float = 300.0
    applying_timeout: float = 300.0

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each option that has a wrong value, and what is wrong with it."""
        for name, kind in _CHOICES.items():
            choice = getattr(self, name)
            if choice not in get_args(kind):
                yield name, f"must be one of {', '.join(get_args(kind))}, not {choice!r}"
        for name in ("stall_timeout", "start_timeout", "polling_timeout", "applying_timeout"):
            seconds = getattr(self, name)
            is_number = isinstance(seconds, int | float) and seconds > 0
            if not is_number and not (name == "start_timeout" and seconds is None):
                yield name, f"must be a number of seconds above 0, not {seconds!r}"
        for name in ("tune_gc", "start_stale"):
            flag = getattr(self, name)
            if not isinstance(flag, bool):
                yield name, f"must be True or False, not {flag!r}"
        on_progress: Any = self.on_progress
        if on_progress is not None and not callable(on_progress):
            yield "on_progress", f"must be a callable that takes a Loading, not {on_progress!r}"


class StoreArguments(TypedDict, total=False):
    """The options as keyword arguments, for type checkers: names and types of `StoreOptions`."""

    stall_timeout: float
    start_timeout: float | None
    on_bad_record: OnBadRecord
    validate: Validate
    tune_gc: bool
    missing_topic: MissingTopic
    unusable_directory: UnusableDirectory
    start_stale: bool
    on_progress: Callable[[Loading], None] | None
    polling_timeout: float
    applying_timeout: float


def directory_problems(directories: list[Any]) -> Iterator[str]:
    """Yield what is wrong with the directories of a store taken together."""
    names = [directory.name for directory in directories if isinstance(directory, Directory)]
    for directory in directories:
        if not isinstance(directory, Directory):
            yield f"directories must be Directory objects or names, not {directory!r}"
    for name in sorted(set(names)):
        if names.count(name) > 1:
            yield f"two directories are called {name!r}"
    if not directories:
        yield "directories is empty: name at least one"
