"""Views by name, of a store or of a snapshot of all its directories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeVar, overload

from compactory.directory import Directory
from compactory.errors import ConfigError, UnknownDirectory
from compactory.read.served import Served
from compactory.read.view import View
from compactory.records import Partition

__all__ = ["StoreSnapshot", "Views", "frozen_view"]

T = TypeVar("T")


class Views(Mapping[str, View[Any]]):
    """A mapping from names of directories to their views; ``views[directory]`` is one that knows its values' type."""

    def __init__(self, views: Mapping[str, View[Any]]) -> None:
        self._views = views

    @overload
    def __getitem__(self, name: str) -> View[Any]: ...
    @overload
    def __getitem__(self, name: Directory[T]) -> View[T]: ...
    def __getitem__(self, name: str | Directory[Any]) -> View[Any]:
        if isinstance(name, Directory):
            view = self[name.name]
            if view.directory != name:
                raise UnknownDirectory(f"the store's directory {name.name!r} is defined otherwise")
            return view
        try:
            return self._views[name]
        except KeyError:
            names = ", ".join(self._views)
            raise UnknownDirectory(f"the store has no directory {name!r}; it has: {names}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __eq__(self, compared: object) -> bool:
        return self is compared

    def __hash__(self) -> int:
        return id(self)

    def directory(self, directory: Directory[T]) -> View[T]:
        """Return ``store[directory]``, a view that knows the type of its values. Raises UnknownDirectory."""
        return self[directory]


class StoreSnapshot(Views):
    """All directories of a store as they were at ``positions``: every record before them is applied, no later one.

    It never changes, for any thread and as long as it is held; the store keeps the former value of each entry that
    changes meanwhile. Reads of what went with a closed store raise StoreClosed.
    """

    def __init__(
        self, views: Mapping[str, View[Any]], positions: Mapping[Partition, int], topic_ids: Mapping[str, str | None]
    ) -> None:
        super().__init__(views)
        self.positions = positions
        """Partition → next offset to read; those of a topic that is read anew are absent."""
        self.topic_ids = topic_ids
        """Topic → its id, None on a Kafka older than 2.8."""

    def __repr__(self) -> str:
        return f"<StoreSnapshot {', '.join(self)}>"


def frozen_view(live: View[T], served: Served) -> View[T]:
    """Return a view of the table that is served now; called while nothing is applied. Raises NotReady, StoreClosed."""
    if not served.open:
        raise served.refusal()
    frozen = Served(served.refusal, served.age, _no_changes)
    frozen.swap(served.live_table.lookup_snapshot())
    frozen.open = True
    return live.of(frozen)


def _no_changes(_timeout: float) -> NoReturn:
    raise ConfigError("a snapshot does not change: watch the store's view")
