"""The options of a console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compactory.kafka.client import Kafka
from compactory_api.http.access import Access
from compactory_connectors.postgres.jdbc_url import Connection
from compactory_connectors.source.config.connector import ConnectorConfig

__all__ = ["ConsoleOptions"]


@dataclass(frozen=True, kw_only=True)
class ConsoleOptions:
    """The processes and servers that a console shows, and the access to it.

    ``servers``     base URLs of processes of Compactory: servers, sources, relays, executors, sinks, processors
    ``token``       the bearer token with which the console asks them
    ``access``      whose tokens sign in; without tokens each visitor has all rights
    ``postgres``    the database of outbox, jobs and sinks; None: their pages say so
    ``kafka``       the cluster of the processors and of comparisons; None: their pages say so
    ``connectors``  the connector of a directory by its name, for the comparison of topic and table
    ``processors``  names of processors
    ``prefix``      the path before all paths, such as ``/console``
    """

    servers: Sequence[str]
    access: Access
    token: str | None = field(default=None, repr=False)
    postgres: Connection | None = field(default=None, repr=False)
    kafka: Kafka | None = None
    connectors: Mapping[str, ConnectorConfig] = field(default_factory=dict)
    processors: Sequence[str] = ()
    prefix: str = ""
