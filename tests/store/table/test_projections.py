"""Objects of a user that are fed every change: whole when the store is ready, in order, errors as of bad records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactory import Change, ConfigError, Directory, GlobalStore, Index, NotReady, RocksDB, StoreFailed, testing
from tests.store.topics import Topics


class Mirror:
    """Holds what the changes add up to, and checks that each follows on what was."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}

    def apply(self, change: Change[Any]) -> None:
        assert change.old == self.entries.get(change.key)
        if change.new is not None and change.new.get("n") == "bad":
            raise ValueError("not this one")
        if change.kind == "put":
            self.entries[change.key] = change.new
        else:
            del self.entries[change.key]


SHAPES = [
    Directory("d", projection=Mirror),
    Directory("d", active="on", indexes=[Index("n")], projection=Mirror),
    Directory("d", key="id", active="on", projection=Mirror),
]
VALUES = st.fixed_dictionaries(
    {"id": st.sampled_from("xyz"), "n": st.sampled_from(["1", "2", "bad"]), "on": st.booleans()}
)
RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | VALUES), max_size=20)


@pytest.mark.parametrize("directory", SHAPES, ids=["plain", "active", "key"])
@settings(max_examples=15)
@given(before=RECORDS, after=RECORDS)
def test_it_holds_what_lookups_find(directory: Directory[Any], before: Any, after: Any) -> None:
    """Guarantees 1, 4 and 6: at the start, after each record that is visible, and after the topic was read anew."""
    store = testing.store({directory: {}}, start=False, unusable_directory="serve")
    for key, value in before:
        store.put(directory, key, value)
    with store:
        view = store[directory]
        assert view.projection.entries == dict(view.items())
        for key, value in after:
            store.put(directory, key, value)
            assert view.projection.entries == dict(view.items())
        former = view.projection
        store.become_stale()
        store.become_current()
        assert view.projection is not former
        assert view.projection.entries == dict(view.items())


def test_what_it_refuses_is_a_bad_record() -> None:
    """Guarantee 4: the entry stays as it was, other keys go on, and the record can be tried once more."""
    with testing.store({SHAPES[0]: {"a": {"n": 1}}}) as store:
        store.put("d", "a", {"n": "bad"})
        store.put("d", "b", {"n": 2})
        assert dict(store["d"].items()) == store["d"].projection.entries == {"a": {"n": 1}, "b": {"n": 2}}
        (bad,) = store.quarantine()
        assert bad.error == "ValueError: not this one"
        assert store.retry() == [bad]
        store.put("d", "a", {"n": 3})
        assert store.quarantine() == []
        assert store["d"].projection.entries["a"] == {"n": 3}
    with testing.store({SHAPES[0]: {}}, on_bad_record="fail") as store, pytest.raises(StoreFailed):
        store.put("d", "a", {"n": "bad"})


def test_before_the_start_and_what_is_no_projection() -> None:
    store = testing.store({SHAPES[0]: {}, "other": {}}, start=False)
    with pytest.raises(NotReady):
        store["d"].projection  # noqa: B018
    with store:
        assert store["other"].projection is None
    with pytest.raises(ConfigError, match="projection must be a class"):
        testing.store({Directory("d", projection="x"): {}})  # type: ignore[call-overload]


@pytest.mark.parametrize("key", [None, "id"])
def test_a_restart_on_disk_feeds_it_what_was_kept(
    topics: Topics, open_store: Callable[..., GlobalStore], tmp_path: Path, key: str | None
) -> None:
    name = topics.create(partitions=2)
    directory = Directory(name, key=key, projection=Mirror)
    topics.produce(name, ("1", '{"id": "a"}'), ("2", '{"id": "b"}'), ("3", '{"id": "a", "n": 3}'), ("2", None))
    open_store(directory, backend=RocksDB(tmp_path)).close()
    topics.produce(name, ("4", '{"id": "c"}'), partition=1)
    store = open_store(directory, backend=RocksDB(tmp_path))
    assert len(store[name]) == 3 if key is None else 2
    assert store[name].projection.entries == dict(store[name].items())
    (token,) = topics.produce(name, ("3", None))
    store.wait_for(token)
    assert store[name].projection.entries == dict(store[name].items())
