"""The source: polls Postgres tables into compacted topics, in the place of the Kafka Connect JDBC source connector."""

from .connector import ConnectorConfig, load_connector
from .preview import TablePreview, preview
from .source import Source
from .status import SourceState, SourceStatus, TableStatus
from .transforms import SourceRecord

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
