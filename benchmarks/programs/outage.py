"""Lookups a second while Postgres goes away and comes back: ``outage BOOTSTRAP TOPIC ENTRIES``.

One process looks up in a store, another one selects the same rows in Postgres. Both count what they found in each
quarter of a second. Postgres is stopped for the middle third.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import psycopg

from benchmarks.topics import value
from compactory import GlobalStore
from compactory_cli.stack.postgres import PostgresServer

STEP = 0.25  # seconds
SECONDS = 24.0


def counted(look_up: Callable[[int], bool], began: float) -> list[int]:
    """Return how many lookups were answered in each step. ``began``: the first step's start by `time.time`."""
    counts: list[int] = []
    number = 0
    for step in range(int(SECONDS / STEP)):
        answered, until = 0, began + (step + 1) * STEP
        while time.time() < until:
            for _ in range(20):
                number += 1
                answered += look_up(number)
        counts.append(answered)
    return counts


def in_the_store(bootstrap: str, topic: str, entries: int, began: float) -> list[int]:
    with GlobalStore(bootstrap, [topic]) as store:
        view = store[topic]
        return counted(lambda number: view.get(str(number % entries)) is not None, began)


def in_postgres(url: str, entries: int, began: float) -> list[int]:
    connection: psycopg.Connection | None = None

    def select(number: int) -> bool:
        nonlocal connection
        try:
            if connection is None:
                connection = psycopg.connect(url, autocommit=True, connect_timeout=1)
            row = connection.execute("SELECT value FROM terminals WHERE id = %s", (number % entries,)).fetchone()
        except psycopg.OperationalError:
            connection = None
            time.sleep(0.01)
            return False
        return row is not None

    return counted(select, began)


def main() -> None:
    bootstrap, topic, entries = sys.argv[1], sys.argv[2], int(sys.argv[3])
    server = PostgresServer()
    try:
        server.start()
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE TABLE terminals (id int PRIMARY KEY, value text NOT NULL)")
            with connection.cursor().copy("COPY terminals FROM STDIN") as copy:
                for number in range(entries):
                    copy.write_row((number, value(number).decode()))
        began = time.time() + 5.0  # by then the store has read the topic
        with ProcessPoolExecutor(2) as pool:
            store = pool.submit(in_the_store, bootstrap, topic, entries, began)
            postgres = pool.submit(in_postgres, server.url(), entries, began)
            time.sleep(began + SECONDS / 3 - time.time())
            server.stop()
            time.sleep(began + SECONDS * 2 / 3 - time.time())
            server.start()
            print(json.dumps({"step": STEP, "store": store.result(), "postgres": postgres.result()}))
    finally:
        server.remove()


if __name__ == "__main__":
    main()
