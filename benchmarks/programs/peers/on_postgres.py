"""Runs another program on a Postgres of its own: ``on_postgres JOBS SAMPLES COMMAND…``, which gets the URL and both."""

from __future__ import annotations

import subprocess
import sys

from compactory_cli.stack.postgres import PostgresServer


def main(jobs: str, samples: str, *command: str) -> None:
    server = PostgresServer()
    try:
        server.start()
        subprocess.run([*command, server.url(), jobs, samples], check=True)
    finally:
        server.remove()


if __name__ == "__main__":
    main(*sys.argv[1:])
