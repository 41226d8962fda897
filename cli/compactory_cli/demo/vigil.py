"""The demo once it is up: takes orders, keeps demo.json true, says of every process when it ends."""

from __future__ import annotations

from typing import Any

from .control import Control
from .narrator import Narrator
from .outage import Outage
from .stage import Stage

__all__ = ["Vigil"]

_LOOK = 0.5  # seconds between looks whether everything runs


class Vigil:
    """Owned by the thread that owns the stage."""

    def __init__(self, stage: Stage, narrator: Narrator) -> None:
        self._stage = stage
        self._narrator = narrator
        self._outage = Outage(stage)
        self._control = Control(stage.home)
        self._running = stage.pids

    def keep(self) -> None:
        """Stay up until a signal comes."""
        while True:
            self._control.take(self._handle, _LOOK)
            before, self._running = self._running, self._stage.pids
            for name in sorted(before.keys() - self._running.keys()):
                self._narrator.tell_end(name, before[name])
            if before != self._running:
                self._stage.home.announce(self._stage.describe())

    def close(self) -> None:
        """Take no more orders."""
        self._control.close()

    def _handle(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self._outage.handle(asked)
        finally:
            self._running = self._stage.pids
            self._stage.home.announce(self._stage.describe())
        self._narrator.tell_order(answer)
        return answer
