"""Kafka's properties as functions for DataFrames are given them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from compactory.errors import ConfigError

__all__ = ["servers"]


def servers(kafka: str | Mapping[str, str] | None, function: str) -> dict[str, str]:
    """The client's properties: given ones, or servers, by default those of the variable ``COMPACTORY_KAFKA``.

    Raises ConfigError that names the function where there are none.
    """
    given = os.environ.get("COMPACTORY_KAFKA") if kafka is None else kafka
    if not given:
        raise ConfigError(f"which Kafka? give {function}(…, kafka='HOST:PORT') or set COMPACTORY_KAFKA")
    return {"bootstrap.servers": given} if isinstance(given, str) else dict(given)
