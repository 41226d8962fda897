"""``compactory source run`` as a process, to be killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
        self._command = [sys.executable, "-m", "compactory_cli", "source", "run", str(path), "--kafka", bootstrap]

    def start(self) -> None:
        """Let it run."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)

    def kill(self) -> None:
        """As kill -9 does, wherever it is."""
        assert self._child.poll() is None, self.log.read_text()
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()
        self.kills += 1

    def end(self) -> None:
        """Kill it, if it still runs; a test that failed shows the end of its log."""
        self._child.kill()
        self._child.wait()
        print(self.log.read_text()[-5000:])

    def finish(self) -> None:
        """Publish what was committed before now."""
        subprocess.run([*self._command, "--once"], env=self._environment, check=True, timeout=60)
