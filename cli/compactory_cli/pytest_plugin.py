"""Fixtures for the tests of services that use Compactory. pytest finds them by itself where Compactory is installed.

Nothing is imported or started before a test asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
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
    """Yield `compactory.testing.store`; its stores are closed after the test. Needs no broker."""
    from compactory import testing

    stores: list[InProcessStore] = []

    def store(entries: Any, **options: Any) -> InProcessStore:
        stores.append(testing.store(entries, **options))
        return stores[-1]

    yield store
    for opened in stores:
        opened.close()


@pytest.fixture(scope="session")
def compactory_kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the bootstrap address of a real broker: the option's, else a broker of ``compactory[demo]``."""
    from compactory_cli.stack.broker import Broker, embedded_broker

    yield from _served(request, f"Kafka: {_KAFKA}=HOST:PORT", embedded_broker, Broker, lambda server: server.address)


@pytest.fixture(scope="session")
def compactory_postgres(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the URL of a real Postgres: the option's, else a server of ``compactory[demo]``."""
    from compactory_cli.stack.postgres import PostgresServer, embedded_binaries

    new = partial(PostgresServer, settings={"fsync": "off"})
    yield from _served(request, f"Postgres: {_POSTGRES}=URL", embedded_binaries, new, lambda server: server.url())


def _served(
    request: pytest.FixtureRequest,
    remedy: str,
    find: Callable[[], object],
    new: Callable[[], Any],
    address: Callable[[Any], str],
) -> Iterator[str]:
    """Yield the address in the option or the environment, else that of a new server for this session.

    Skips the test where ``find`` raises ConfigError, as the server's package is missing.
    """
    from compactory.errors import ConfigError

    option = remedy.partition(": ")[2].partition("=")[0]
    variable = option.removeprefix("--").replace("compactory-", "COMPACTORY_TEST_").upper()
    if address_given := request.config.getoption(option) or os.environ.get(variable):
        yield address_given
        return
    try:
        find()
    except ConfigError as missing:
        pytest.skip(f"{missing}; or name a {remedy}")
    server = new()
    try:
        server.start()
        yield address(server)
    finally:
        server.remove()
