"""Log lines on stderr: text for people, a JSON object a line for programs, never with secrets."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
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
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
    ]
    if form is LogFormat.JSON:
        shared += [structlog.processors.TimeStamper(fmt="iso", utc=True), structlog.processors.format_exc_info]
    else:
        shared += [structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = _Stderr()
    general = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, hide_secrets, _renderer(form)],
    )
    handler.setFormatter(_Plain(general) if form is LogFormat.JSON else general)
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


class _Plain(logging.Formatter):
    """Formats plain text itself, in a tenth of the time; the rest by the general formatter.

    A record with the attribute ``line_by_line`` becomes a log line for each of its lines.
    """

    def __init__(self, general: logging.Formatter) -> None:
        super().__init__()
        self._general = general

    def format(self, record: logging.LogRecord) -> str:
        """Return the line as the general formatter would."""
        if (
            type(record.msg) is not str
            or record.exc_info
            or record.stack_info
            or structlog.contextvars.get_contextvars()
        ):
            return self._general.format(record)
        text = _hidden(record.getMessage())
        moment = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        fields = {"level": record.levelname.lower(), "logger": record.name, "timestamp": moment}
        events = text.split("\n") if hasattr(record, "line_by_line") else [text]
        return "\n".join(orjson.dumps({"event": event, **fields}).decode() for event in events)


def hide_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace values with a secret name, and passwords within URLs and DSNs, by ``[hidden]``."""
    for name, value in event.items():
        if _SECRET_NAME.search(name):
            event[name] = _HIDDEN
        elif isinstance(value, str):
            event[name] = _hidden(value)
    return event


def _hidden(text: str) -> str:
    """Return a text without its passwords. Most lines skip the pattern, which takes microseconds."""
    return _SECRET_TEXT.sub(rf"\1\2{_HIDDEN}", text) if "=" in text or "://" in text else text


def _renderer(form: LogFormat) -> Any:
    if form is LogFormat.JSON:
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0, sort_keys=False)
