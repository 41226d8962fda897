"""Ask a console for pages of a directory: ``console_pages PORT DIRECTORY ENTRIES``; prints a line of JSON."""

from __future__ import annotations

import json
import random
import sys
import time
from statistics import median
from urllib.error import HTTPError
from urllib.request import urlopen

_PAGES = 40  # of each kind


def seconds(url: str) -> float:
    """Return the seconds until the page is whole."""
    began = time.perf_counter()
    with urlopen(url) as answer:
        answer.read()
    return time.perf_counter() - began


def wait_for_directory(url: str) -> None:
    """Wait until the console knows the directory."""
    deadline = time.monotonic() + 30
    while True:
        try:
            seconds(url)
        except HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    port, directory, entries = sys.argv[1:]
    address = f"http://127.0.0.1:{port}/servers/0/directories/{directory}"
    keys = [str(random.randrange(int(entries))) for _ in range(_PAGES)]
    wait_for_directory(f"{address}/entry?key=0")
    first_search = seconds(f"{address}?prefix=7")
    figures = {
        "entry_ms": median(seconds(f"{address}/entry?key={key}") for key in keys) * 1000,
        "search_ms": median(seconds(f"{address}?prefix={key[:3]}") for key in keys) * 1000,
        "first_search_ms": first_search * 1000,
    }
    print(json.dumps(figures))
