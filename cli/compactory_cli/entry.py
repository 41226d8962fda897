"""The ``compactory`` script: names the extra to install where a package of it is missing, then runs the command line.

Imports nothing but the standard library before it knows that it may.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

__all__ = ["run"]

_EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "pydantic": "cli",
    "structlog": "cli",
    "httpx2": "cli",
    "psycopg": "connectors",
    "cronsim": "connectors",
    "javaproperties": "connectors",
    "prometheus_client": "connectors",
    "fastapi": "api",
    "uvicorn": "api",
    "httptools": "api",
    "jsonschema_rs": "api",
    "jinja2": "console",
    "starlette": "console",
    "rocksdict": "rocksdb",
    "psutil": "demo",
    "pyspark": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "numpy": "spark",
    "yaml": "spark",
}


def run() -> None:
    """Run the command line and exit; 2 when an extra is missing. ``--version`` needs no extra."""
    if sys.argv[1:] == ["--version"]:
        print(f"compactory {version('compactory')}")
        return
    try:
        from .main import run_app

        run_app()
    except KeyboardInterrupt:  # while the commands are imported
        sys.exit(130)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        from compactory.errors import extra_remedy

        print(f"error: this command needs the package {package!r}: {extra_remedy(_EXTRAS[package])}", file=sys.stderr)
        sys.exit(2)
