"""Log lines on stderr: text for people, a JSON object a line for programs, never with secrets."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog

from .configuration import Configuration
from .flags import LogFormat, LogLevel

__all__ = ["configure_logging", "hide_secrets"]

_SECRET_NAME = re.compile(r"password|secret|passphrase|jaas|token|authorization|\.pem$", re.IGNORECASE)
_SECRET_TEXT = re.compile(r"(://[^:/@\s]*:)[^@\s]*(?=@)|((?:password|secret)\s*=\s*)(?:'[^']*'|\S+)", re.IGNORECASE)
_HIDDEN = "[hidden]"


def configure_logging(configuration: Configuration, default: LogLevel) -> None:
    """Send the lines of structlog and of the standard library through one handler; replaces an earlier set-up."""
    level = configuration.log_level or default
    form = configuration.log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
    structlog.configure(
        processors=[
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = _Stderr()
    handler.setFormatter(_Lines(form))
    handler.addFilter(lambda record: not record.exc_info or record.exc_info[0] is not KeyboardInterrupt)  # py4j's
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.value.upper())


class _Stderr(logging.StreamHandler[Any]):
    """Writes to the current ``sys.stderr``, which a progress bar replaces while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self.stream = sys.stderr
        super().emit(record)


class _Lines(logging.Formatter):
    """Formats the records of both libraries.

    In JSON a record with the attribute ``line_by_line`` becomes a log line for each of its lines.
    """

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self._is_json = form is LogFormat.JSON
        self._console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0, sort_keys=False)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or lines, of a record."""
        fields = dict(record.msg) if isinstance(record.msg, dict) else {"event": record.getMessage()}
        fields |= structlog.contextvars.get_contextvars()
        fields |= {"level": record.levelname.lower(), "logger": record.name}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        hide_secrets(fields)
        at = datetime.fromtimestamp(record.created, UTC)
        if not self._is_json:
            return str(self._console(None, "", fields | {"timestamp": f"{at.astimezone():%H:%M:%S}"}))
        fields["timestamp"] = at.isoformat().replace("+00:00", "Z")
        event = fields.pop("event")
        events = event.split("\n") if hasattr(record, "line_by_line") else [event]
        return "\n".join(orjson.dumps({"event": text, **fields}, default=str).decode() for text in events)


def hide_secrets(fields: dict[str, Any]) -> None:
    """Replace values with a secret name, and passwords within URLs and DSNs, by ``[hidden]``."""
    for name, value in fields.items():
        if _SECRET_NAME.search(name):
            fields[name] = _HIDDEN
        elif isinstance(value, str) and ("=" in value or "://" in value):  # most texts skip the slow pattern
            fields[name] = _SECRET_TEXT.sub(rf"\1\2{_HIDDEN}", value)
