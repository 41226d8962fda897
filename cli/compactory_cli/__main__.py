"""``python -m compactory_cli`` is ``compactory``."""

from .entry import run

run()
