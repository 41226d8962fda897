"""A store over a real Kafka behind a real uvicorn on a free port, asked over real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from compactory import Directory, GlobalStore
from compactory_api.http.access import Access
from compactory_api.mastered.servers import Servers
from tests.api.serving import SERVERS, Serving
from tests.cli.conftest import article, compactory, terminals  # noqa: F401 (fixtures)
from tests.store.topics import Topics


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    """Topics of the run's Apache Kafka."""
    return Topics(kafka, unique)


@pytest.fixture
def serve(kafka: str) -> Iterator[Callable[..., Serving]]:
    """Makes running servers over directories, ready unless told otherwise; stopped after the test."""
    running: list[Serving] = []
    shared = kafka

    def start(
        *directories: str | Directory[Any],
        access: Access | None = None,
        ready: bool = True,
        proxies: Sequence[str] = (),
        servers: Servers | None = SERVERS,
        kafka: str = shared,
        **options: Any,
    ) -> Serving:
        store = GlobalStore(kafka, directories, **{"unusable_directory": "serve", **options})
        serving = Serving(store, access or Access(), proxies=proxies, servers=servers)
        running.append(serving)
        if ready:
            serving.wait_ready()
        return serving

    yield start
    for serving in running:
        serving.stop()
