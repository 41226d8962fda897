"""The mappings and collections that `View.items`, `View.values` and `View.index` return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import ItemsView as _ItemsView
from collections.abc import ValuesView as _ValuesView
from typing import Any, TypeVar

from compactory.codec.decoding import Term, term_values
from compactory.directory import Index

__all__ = ["IndexView", "Items", "Values"]

T = TypeVar("T")


class Items(_ItemsView[str, T]):
    """Keys and values; entries that are deleted during the iteration are left out, not an error."""

    _mapping: Any

    def __iter__(self) -> Iterator[tuple[str, T]]:
        pairs: Iterator[tuple[str, T]] = self._mapping.snapshot()
        return pairs


class Values(_ValuesView[T]):
    """Values; entries that are deleted during the iteration are left out, not an error."""

    _mapping: Any

    def __iter__(self) -> Iterator[T]:
        return (value for _, value in self._mapping.snapshot())

    def __contains__(self, value: object) -> bool:
        return any(value == candidate for candidate in self)


class IndexView(Mapping[Any, Any]):
    """An index as a read-only mapping: value → the one entry's value (unique) or the list of values.

    The key of an index over several fields is a tuple in their order. Lookups see the current entries; iteration
    goes over the indexed values as they were when it began.
    """

    def __init__(
        self,
        index: Index,
        find: Callable[[Mapping[str, Any]], list[Any]],
        terms: Callable[[], Iterable[Term]],
    ) -> None:
        self._index = index
        self._find = find
        self._terms = terms

    def __repr__(self) -> str:
        return f"<IndexView {self._index.name!r}>"

    def __getitem__(self, value: Any) -> Any:
        fields = self._index.fields
        parts = (value,) if len(fields) == 1 else value
        if not isinstance(parts, tuple) or len(parts) != len(fields):
            raise KeyError(value)
        matches = self._find(dict(zip(fields, parts, strict=True)))
        if not matches:
            raise KeyError(value)
        return matches[0] if self._index.unique else matches

    def __iter__(self) -> Iterator[Any]:
        for term in list(self._terms()):
            values = term_values(self._index.fields, term)
            yield values[0] if len(values) == 1 else values

    def __len__(self) -> int:
        return len(list(self._terms()))
