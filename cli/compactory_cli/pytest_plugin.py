"""Fixtures for the tests of services that use Compactory. pytest finds them by itself where Compactory is installed.

Nothing is imported or started before a test asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from compactory.testing import InProcessStore

__all__ = ["compactory_kafka", "compactory_postgres", "compactory_store"]

_KAFKA, _POSTGRES = "--compactory-kafka", "--compactory-postgres"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the addresses of servers to test with."""
    group = parser.getgroup("compactory")
    group.addoption(_KAFKA, metavar="HOST:PORT", help="the Kafka of compactory_kafka (or COMPACTORY_TEST_KAFKA)")
    group.addoption(_POSTGRES, metavar="URL", help="the Postgres of compactory_postgres (or COMPACTORY_TEST_POSTGRES)")


@pytest.fixture
def compactory_store() -> Iterator[Callable[..., InProcessStore]]:
    """Makes stores as `compactory.testing.store` does, closed after the test. Without a broker, in milliseconds."""
    from compactory import testing

    made: list[InProcessStore] = []

    def store(entries: Any, **options: Any) -> InProcessStore:
        made.append(testing.store(entries, **options))
        return made[-1]

    yield store
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def compactory_kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """Bootstrap address of a real broker: the one named, else the broker of ``compactory[demo]`` for this session."""
    if address := _given(request, _KAFKA):
        yield address
        return
    from compactory_cli.stack.broker import Broker, embedded_broker

    _skip_without(embedded_broker, f"name a Kafka: {_KAFKA}=HOST:PORT")
    server = Broker()
    try:
        server.start()
        yield server.address
    finally:
        server.remove()


@pytest.fixture(scope="session")
def compactory_postgres(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a real Postgres: the one named, else the server of ``compactory[demo]``, made for this session."""
    if url := _given(request, _POSTGRES):
        yield url
        return
    from compactory_cli.stack.postgres import PostgresServer, embedded_binaries

    _skip_without(embedded_binaries, f"name a Postgres: {_POSTGRES}=URL")
    server = PostgresServer(settings={"fsync": "off"})
    try:
        server.start()
        yield server.url()
    finally:
        server.remove()


def _given(request: pytest.FixtureRequest, option: str) -> str | None:
    """Return the address of the option, or of the environment variable that stands for it."""
    variable = option.removeprefix("--").replace("compactory-", "COMPACTORY_TEST_").upper()
    return request.config.getoption(option) or os.environ.get(variable) or None


def _skip_without(find: Callable[[], object], otherwise: str) -> None:
    from compactory.errors import ConfigError

    try:
        find()
    except ConfigError as missing:
        pytest.skip(f"{missing}; or {otherwise}")
