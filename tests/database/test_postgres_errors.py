"""Refusals of a login that need a server with an identity provider, or a pooler, to be met."""

from __future__ import annotations

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.database.jdbc_url import checked_url
from compactory_connectors.database.postgres_errors import postgres_errors


@pytest.mark.parametrize(
    "said",
    [
        'FATAL:  LDAP authentication failed for user "a"',
        'FATAL:  certificate authentication failed for user "a"',
        "FATAL:  SASL authentication failed",
        "fe_sendauth: no password supplied",
        'FATAL:  pg_hba.conf rejects connection for host "::1", user "a", database "d", no encryption',
        'VAZHNO:  v pg_hba.conf net zapisi dlya komp`yutera "::1", pol`zovatelya "a", bazy` "d", net shifrovaniya',
    ],
)
def test_a_refused_login_is_no_outage(said: str) -> None:
    with pytest.raises(ConfigError, match="refused the login"), postgres_errors(checked_url("postgresql://h/d")):
        raise psycopg.OperationalError(f'connection to server at "h", port 5432 failed: {said}\n')
