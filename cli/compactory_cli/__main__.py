"""``python -m compactory_cli`` is ``compactory``."""

from .main import run

run()
