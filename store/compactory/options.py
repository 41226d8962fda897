"""The options of a store besides its directories, checked before anything starts. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from compactory.directory import Directory
from compactory.loading import Loading

__all__ = ["MissingTopic", "OnBadRecord", "Options", "UnusableDirectory", "Validate", "directory_problems"]

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
class Options:
    """The options of a `GlobalStore`, which describes them."""

    stall_timeout: float
    start_timeout: float | None
    polling_timeout: float
    applying_timeout: float
    on_bad_record: OnBadRecord
    validate: Validate
    missing_topic: MissingTopic
    unusable_directory: UnusableDirectory
    start_stale: bool
    tune_gc: bool
    on_progress: Callable[[Loading], None] | None
    max_bytes: int | None

    def problems(self) -> list[str]:
        """Return what is wrong with them."""
        found = []
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                found.append(f"{name} must be one of {', '.join(get_args(kind))}, not {getattr(self, name)!r}")
        for name in ("stall_timeout", "start_timeout", "polling_timeout", "applying_timeout"):
            seconds = getattr(self, name)
            absent = seconds is None and name == "start_timeout"
            if not absent and not (isinstance(seconds, int | float) and seconds > 0):
                found.append(f"{name} must be a number of seconds above 0, not {seconds!r}")
        flags: dict[str, Any] = {"tune_gc": self.tune_gc, "start_stale": self.start_stale}
        found += [f"{name} must be True or False, not {it!r}" for name, it in flags.items() if not isinstance(it, bool)]
        on_progress: Any = self.on_progress
        if on_progress is not None and not callable(on_progress):
            found.append(f"on_progress must be a callable that takes a Loading, not {on_progress!r}")
        max_bytes: Any = self.max_bytes
        if max_bytes is not None and not (isinstance(max_bytes, int) and max_bytes > 0):
            found.append(f"max_bytes must be a whole number above 0, not {max_bytes!r}")
        return found


def directory_problems(directories: list[Any]) -> list[str]:
    """Return what is wrong with the directories of a store taken together."""
    problems = [
        f"directories must be Directory objects or names, not {item!r}"
        for item in directories
        if not isinstance(item, Directory)
    ]
    names = [item.name for item in directories if isinstance(item, Directory)]
    problems.extend(f"two directories are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1)
    if not directories:
        problems.append("directories is empty: name at least one")
    return problems
