"""The source: polls Postgres tables into compacted topics, in the place of the Kafka Connect JDBC source connector."""

from compactory_connectors.connect.transforms import SourceRecord

from .config.connector import ConnectorConfig
from .config.files import load_connector
from .control.status import SourceState, SourceStatus, TableStatus
from .run.preview import TablePreview, preview
from .run.source import Source

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
