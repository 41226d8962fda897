"""A source whose turn it is not: it has checked that it could publish, and looks for its turn now and then."""

from __future__ import annotations

import time
from typing import Final

import structlog

from compactory.errors import ConfigError
from compactory_connectors.database.postgres_errors import postgres_errors

from ..config.connector import ConnectorConfig
from ..control.control import Control, Stop
from ..control.status import StatusBoard
from ..plan.planning import find_plans
from ..postgres.server import Server
from .lease import LeaseTaken
from .lease_claim import TTL

__all__ = ["Standby"]

log = structlog.get_logger("compactory.source")

_LOOK: Final = 0.25
"""Seconds between two looks at the lease."""


class Standby:
    """Waits for one connector's lease. Owned by the source's thread."""

    def __init__(self, connector: ConnectorConfig, control: Control, board: StatusBoard) -> None:
        self._connector = connector
        self._control = control
        self._board = board
        self._since: float | None = None

    def end(self) -> None:
        """It is this source's turn."""
        self._since = None

    def wait(self, taken: LeaseTaken, stop: Stop, *, once: bool, strict: bool) -> None:
        """Wait a little, with ``once`` not for longer than a holder that has died keeps its lease: raises ``taken``.

        With ``strict`` tables that can't be polled are an error here as they were for a session. Raises ConfigError,
        Unreachable.
        """
        if self._since is None:
            self._show_tables(strict=strict)
            self._since = time.monotonic()
            log.info("source stands by", connector=self._connector.name, detail=str(taken))
        if once and time.monotonic() - self._since > TTL + _LOOK:
            raise taken
        self._board.stands_by(str(taken))
        self._control.wait(stop, _LOOK)

    def _show_tables(self, *, strict: bool) -> None:
        connection = self._connector.connection
        with postgres_errors(connection):
            server = Server.open(connection.conninfo)
            try:
                found = find_plans(server, self._connector)
            finally:
                server.close()
        if strict and (problems := found.all_problems):
            raise ConfigError(problems)
        self._board.only([plan.qualified for plan in found.plans])
        for plan in found.plans:
            covered = plan.reading.covered
            self._board.table(
                plan.qualified, plan.topic, adopted=plan.adopted, reading=plan.reading.value, covered=covered
            )
