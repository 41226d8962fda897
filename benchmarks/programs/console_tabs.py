"""Look entries up while tabs are open: ``console_tabs PORT CONSOLE TABS``; prints the figures of ``http_load``.

A tab is what a browser with the overview does: it follows the content as events, and asks for four charts every five
seconds. The tabs are in a process of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import uvloop

from benchmarks.programs.http_load import load
from benchmarks.stage import python

_FIGURES = ("lag", "age", "changes", "lookups")
_CHART_SECONDS = 5.0


async def show(url: str, opened: asyncio.Barrier) -> None:
    """Be a tab until cancelled."""
    async with httpx2.AsyncClient(base_url=url, timeout=60.0) as client, asyncio.TaskGroup() as group:
        group.create_task(draw(client))
        async with client.stream("GET", "/live/overview") as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await opened.wait()
            async for _ in lines:
                pass


async def draw(client: httpx2.AsyncClient) -> None:
    """Ask for the charts of a tab again and again."""
    while True:
        for figure in _FIGURES:
            (await client.get("/charts", params={"figure": figure})).raise_for_status()
        await asyncio.sleep(_CHART_SECONDS)


async def open_tabs(url: str, count: int) -> None:
    """Open tabs, print a line once all have their content, and keep them open."""
    opened = asyncio.Barrier(count + 1)
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(show(url, opened))
        await opened.wait()
        print("open", flush=True)


@contextmanager
def tabs(console: str, count: int) -> Iterator[None]:
    """Keep tabs open in a process of their own."""
    if not count:
        yield
        return
    process = subprocess.Popen(python("console_tabs", "open", console, count), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the tabs could not be opened"
        yield
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    first, console, count = sys.argv[1:]
    if first == "open":
        uvloop.run(open_tabs(f"http://127.0.0.1:{console}", int(count)))
    else:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        with tabs(console, int(count)):
            print(json.dumps(uvloop.run(load(int(first), "single"))))
