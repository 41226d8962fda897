"""``compactory source run`` as a process, to be killed and started again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.stack.command import run_command, start_command

__all__ = ["Child"]


class Child:
    """The source of one connector, whose configuration is written to ``path``."""

    def __init__(
        self, path: Path, config: Mapping[str, Any], bootstrap: str, environment: Mapping[str, str] | None = None
    ) -> None:
        path.write_text(json.dumps(config))
        self.log = path.with_suffix(".log")
        self.kills = 0
        self._environment = {**os.environ, **(environment or {})}
        self._words = ["source", "run", str(path), "--kafka", bootstrap]

    def start(self) -> None:
        """Start the process; what it prints is added to the log."""
        self._process = start_command(
            self._words, folder=self.log.parent, environment=self._environment, out=self.log, err=self.log
        )

    def kill(self) -> None:
        """As kill -9 does, wherever it is."""
        assert self._process.is_alive(), self.log.read_text()
        self._process.kill()
        self._process.join()
        self.kills += 1

    def end(self) -> None:
        """Kill it, if it still runs; a test that failed shows the end of its log."""
        self._process.kill()
        self._process.join()
        print(self.log.read_text()[-5000:])

    def finish(self) -> None:
        """Publish what was committed before now."""
        run_command(
            [*self._words, "--once"], folder=self.log.parent, environment=self._environment, timeout=60
        ).check_returncode()
