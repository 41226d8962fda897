"""Reads environment variables; no other module of the command line does.

Each variable may have the suffix ``_FILE`` and name a file with the value. Kafka's properties are
``COMPACTORY_KAFKA_<PROPERTY>`` with ``_`` for dots.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from compactory.kafka.properties import nearest_property

__all__ = ["VARIABLES", "Environment", "read_environment"]

_PREFIX = "COMPACTORY_"
_KAFKA = "COMPACTORY_KAFKA_"
VARIABLES: dict[str, tuple[str, str] | None] = {
    "CONFIG": None,
    "KAFKA": None,
    "POSTGRES": ("postgres", "url"),
    "LISTEN": ("http", "listen"),
    "URL": None,
    "LOG_LEVEL": None,
    "LOG_FORMAT": None,
    "HTTP_READ_TOKEN": ("http", "read_token"),
    "HTTP_WRITE_TOKEN": ("http", "write_token"),
    "HTTP_ADVERTISED": ("http", "advertised"),
    "HTTP_SERVERS": ("http", "servers"),
    "HTTP_SERVERS_SECRET": ("http", "servers_secret"),
    "HTTP_PROXIES": ("http", "proxies"),
    "HTTP_ADMIN_TOKEN": ("http", "admin_token"),
}
"""The variables after ``COMPACTORY_``, and the section and key of the file that they replace."""

_NAMES = tuple(_PREFIX + name for name in VARIABLES)

# Kubernetes sets these for a Service that happens to be called compactory, or compactory-kafka.
# COMPACTORY_TEST_… name the servers of a user's tests.
_FOREIGN = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT$|_PORT_\d+_(TCP|UDP|SCTP)(_|$)|^COMPACTORY_TEST_")

# Properties whose names end in "file".
_FILE_PROPERTY = re.compile(r"_SASL_OAUTHBEARER_ASSERTION_(PRIVATE_KEY_|JWT_TEMPLATE_)?FILE$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The variables of the environment; ``problems`` lists everything wrong with them."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    problems: tuple[str, ...] = ()

    def get(self, name: str) -> str | None:
        """Return the value of ``COMPACTORY_<name>``."""
        return self.values.get(_PREFIX + name)


def read_environment(variables: Mapping[str, str] = os.environ) -> Environment:
    """Read every variable of Compactory. An empty variable counts as not set."""
    problems: list[str] = []
    values: dict[str, str] = {}
    for variable, text in sorted(variables.items()):
        if not variable.startswith(_PREFIX) or not text or _FOREIGN.search(variable):
            continue
        name = variable
        if variable.endswith("_FILE") and not _FILE_PROPERTY.search(variable):
            name = variable.removesuffix("_FILE")
            if variables.get(name):
                problems.append(f"{variable}: {name} is set as well; remove one of them")
                continue
        if name not in _NAMES and not name.startswith(_KAFKA):
            problems.append(f"{variable}: unknown variable{_hint(name)}")
        elif (value := text if name == variable else _content(variable, text, problems)) is not None:
            values[name] = value
    kafka = {_property(name): values.pop(name) for name in list(values) if name not in _NAMES}
    return Environment(values=values, kafka=kafka, problems=tuple(problems))


def _hint(name: str) -> str:
    close = get_close_matches(name, _NAMES, n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(_NAMES)} and {_KAFKA}<PROPERTY>"


def _content(variable: str, path: str, problems: list[str]) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        problems.append(f"{variable}: can't read {path}: {reason}")
        return None


def _property(variable: str) -> str:
    """Return the Kafka property of a variable. A few properties have an underscore (``log_level``)."""
    name = variable.removeprefix(_KAFKA).lower()
    nearest = nearest_property(name)
    return nearest if nearest is not None and nearest.replace(".", "_") == name else name.replace("_", ".")
