"""Tables as the catalogue describes them, for tests that need no plan."""

from __future__ import annotations

from typing import Any

import psycopg

from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.postgres.catalog import Table, describe, find_relations

__all__ = ["describe_tables"]


def describe_tables(connection: psycopg.Connection[Any], config: ConnectorConfig) -> list[Table]:
    """The tables of a connector, fit to be polled or not."""
    found = (describe(connection, relation) for relation in config.selection.choose(find_relations(connection)))
    return [table for table in found if table is not None]
