"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compactory import Directory, GlobalStore
from tests.store.topics import Topics


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    """Topics of the run's Apache Kafka."""
    return Topics(kafka, unique)


@pytest.fixture
def open_store(kafka: str) -> Iterator[Callable[..., GlobalStore]]:
    """Makes started stores, closed after the test; a directory of bad records alone is served, unless a test says."""
    stores: list[GlobalStore] = []

    def start(*directories: str | Directory[Any], **options: Any) -> GlobalStore:
        store = GlobalStore(kafka, directories, **{"unusable_directory": "serve", **options})
        stores.append(store)
        store.start()
        return store

    yield start
    for store in stores:
        store.close()
