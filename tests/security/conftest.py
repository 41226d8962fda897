"""A database whose components each log in with a role of their own and the rights of ``compactory sql roles``.

And a Kafka that talks to nobody in the clear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
import pytest

from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.schema import Adoption, Roles, adopt, grant, install, plan_grants
from compactory_sql import read
from tests.conftest import needs_apache_kafka
from tests.security.secured_kafka import SecuredKafka

TABLE = "public.terminal_acquirer"


@dataclass(frozen=True, kw_only=True)
class Tenancy:
    """The article's table, owned by ``owner``, in a database of its own."""

    server: PostgresServer
    database: str
    roles: Roles

    def url(self, role: str = "postgres") -> str:
        return self.server.url(self.database, role)

    def connect(self, role: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(self.url(role), autocommit=True)

    def run(self, statement: str, role: str = "postgres") -> None:
        with self.connect(role) as connection:
            connection.execute(statement)

    def give_rights(self) -> None:
        with self.connect() as connection:
            grant(connection, plan_grants(connection, [TABLE], self.roles))

    def adopt(self) -> None:
        """As the owner, who is no superuser; then the rights on what has come into being."""
        with self.connect(self.roles.owner) as connection:
            install(connection)
            adopt(connection, Adoption(table=TABLE, key=("terminal_id",), active="is_active"))
        self.give_rights()


@pytest.fixture
def tenancy(postgres_server: PostgresServer, unique: Callable[[str], str]) -> Iterator[Tenancy]:
    """Roles exist and have their rights; nothing is installed yet. PUBLIC may not even connect."""
    database = unique("tenancy")
    roles = Roles(owner=unique("owner"), source=unique("source"), writer=unique("writer"))
    holder = unique("holder")
    found = Tenancy(server=postgres_server, database=database, roles=roles)
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{database}"')
        connection.execute(f'CREATE ROLE "{holder}"')
        connection.execute(f'REVOKE ALL ON DATABASE "{database}" FROM PUBLIC')
    found.run(read("templates/terminal_acquirer.sql"))
    found.run(f'REVOKE ALL ON SCHEMA public FROM PUBLIC; ALTER TABLE {TABLE} OWNER TO "{holder}"')
    found.run(f'GRANT USAGE, CREATE ON SCHEMA public TO "{holder}"')
    found.give_rights()
    yield found
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{database}" WITH (FORCE)')
        for role in (roles.owner, roles.source, roles.writer, holder):
            connection.execute(f'DROP ROLE "{role}"')


@pytest.fixture(scope="package")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A Kafka that talks TLS and SASL, and its identity provider."""
    needs_apache_kafka()
    found = SecuredKafka(tmp_path_factory.mktemp("secured"))
    try:
        found.start()
        yield found
    finally:
        found.remove()
