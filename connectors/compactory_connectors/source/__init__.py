"""The source: polls Postgres tables into compacted topics, in the place of the Kafka Connect JDBC source connector."""

from compactory_connectors.connect.transforms import SourceRecord

from .config.connector import ConnectorConfig
from .config.files import load_connector
from .operations.preview import TablePreview, preview
from .runtime.source import Source
from .status.status import SourceState, SourceStatus, TableStatus

__all__ = [
    "ConnectorConfig",
    "Source",
    "SourceRecord",
    "SourceState",
    "SourceStatus",
    "TablePreview",
    "TableStatus",
    "load_connector",
    "preview",
]
