"""The beginning of every command: configuration loaded, logging set up."""

from __future__ import annotations

from .configuration import Configuration, load
from .flags import Flags, LogLevel
from .logging import configure_logging

__all__ = ["begin"]


def begin(flags: Flags, log_level: LogLevel = LogLevel.WARNING) -> Configuration:
    """Load the configuration and send log lines to stderr, from ``log_level`` on unless the user says otherwise.

    Raises ConfigError with every problem found.
    """
    configuration = load(flags)
    configure_logging(configuration, log_level)
    return configuration
