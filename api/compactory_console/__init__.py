"""The console: directories, their changes, and every worker of the processes that it is told of, in a browser.

It asks the HTTP API of those processes, and calls the operators' functions of outbox, jobs, sinks and processors.
"""

from .app import Console
from .options import ConsoleOptions

__all__ = ["Console", "ConsoleOptions"]
