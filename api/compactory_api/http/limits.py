"""Limits on the clients of the HTTP API and of the workers' listener."""

from __future__ import annotations

import sys

__all__ = [
    "ANSWER_SECONDS",
    "BULK_LINES",
    "HEADERS",
    "HEAD_BYTES",
    "IDLE_SECONDS",
    "IN_FLIGHT_BYTES",
    "MOST_CONNECTIONS",
    "MOST_WATCHERS",
    "PROBE_CONNECTIONS",
    "REQUEST_BYTES",
    "REQUEST_SECONDS",
]

HEAD_BYTES = 64 << 10  # of a request's line and headers together
HEADERS = 200  # lines
REQUEST_BYTES = 16 << 20  # of a whole request as it is sent
BULK_LINES = 10_000  # of one bulk write; the project's client sends as many
REQUEST_SECONDS = 30.0  # from the first byte of a request to its last
IDLE_SECONDS = 75.0  # between requests; load balancers keep idle connections for 60 and reuse one as it closes
ANSWER_SECONDS = 30.0  # in which a client must read some of its answer
IN_FLIGHT_BYTES = 256 << 20  # of bodies of requests under way and of answers that clients have not read
PROBE_CONNECTIONS = 64  # of a worker's listener, which has a thread for each


def _most_connections() -> int:
    """Return half of the number of files that the process may open: Kafka and RocksDB need the other half."""
    if sys.platform == "win32":
        return 4096
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if files == resource.RLIM_INFINITY else min(4096, files // 2)


MOST_CONNECTIONS = _most_connections()
MOST_WATCHERS = MOST_CONNECTIONS // 2  # each is a connection; lookups need the others
