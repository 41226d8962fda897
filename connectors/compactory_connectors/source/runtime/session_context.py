"""The context that the parts of a session share."""

from __future__ import annotations

from dataclasses import dataclass

from compactory.kafka.client import Kafka
from compactory_connectors.kafka.publisher import Publisher

from ..config.connector import ConnectorConfig
from ..postgres.chunk_reader import PageBytes
from ..status.board import StatusBoard
from ..status.orders import Orders
from .offset_checks import PublishedTopics

__all__ = ["SessionContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """The connector, and the systems and records that a session works with."""

    connector: ConnectorConfig
    kafka: Kafka
    publisher: Publisher
    board: StatusBoard
    create_topics: bool
    orders: Orders
    page_bytes: PageBytes
    topics: PublishedTopics
