"""How programs of this folder take figures of their own process: reads a second, memory, time."""

from __future__ import annotations

import gc
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.stage import LAUNCHED

__all__ = ["Clock", "memory", "reads"]

_KEYS = 100_000  # picked at random, prepared beforehand
_STRIDE = 1000  # reads between two looks at the clock
_WARM_UP = 0.3  # seconds
_CALM = 0.5  # seconds without falling, after which memory is taken to have settled
_PATIENCE = 5.0  # seconds


class Clock:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def figures(self) -> dict[str, float]:
        """Return ``seconds`` and ``cpu``, and ``launch_seconds`` since the process was launched."""
        figures = {"seconds": time.perf_counter() - self._wall, "cpu": time.process_time() - self._cpu}
        launched = os.environ.get(LAUNCHED)
        return figures | ({"launch_seconds": time.time() - float(launched)} if launched else {})


def memory() -> dict[str, float]:
    """Return ``rss_mb``, once it has stopped falling, and ``peak_mb``."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    process = psutil.Process()
    lowest, since, began = process.memory_info().rss, time.monotonic(), time.monotonic()
    while time.monotonic() - since < _CALM and time.monotonic() - began < _PATIENCE:
        time.sleep(0.05)
        now = process.memory_info().rss
        if now < lowest - (256 << 10):
            lowest, since = now, time.monotonic()
    return {"rss_mb": process.memory_info().rss / (1 << 20), "peak_mb": peak}


def reads(get: Callable[[str], Any], entries: int, *, threads: int = 1, seconds: float = 1.0) -> float:
    """Return how many reads of random keys a second all threads did together, once each key was read.

    The cyclic collector is on, as in a service: what is read is garbage at once.
    """
    gc.enable()
    chosen = random.Random(7)
    keys = [str(chosen.randrange(entries)) for _ in range(_KEYS)]
    strides = [keys[first : first + _STRIDE] for first in range(0, _KEYS, _STRIDE)]
    for key in keys:
        get(key)
    _read(get, strides, threads, _WARM_UP)
    return _read(get, strides, threads, seconds)


def _read(get: Callable[[str], Any], strides: list[list[str]], threads: int, seconds: float) -> float:
    done = [0] * threads
    began = time.perf_counter()
    until = began + seconds

    def loop(number: int) -> None:
        at = number * len(strides) // threads
        while time.perf_counter() < until:
            for key in strides[at]:
                get(key)
            done[number] += _STRIDE
            at = (at + 1) % len(strides)

    others = [Thread(target=loop, args=(number,)) for number in range(1, threads)]
    for thread in others:
        thread.start()
    loop(0)
    for thread in others:
        thread.join()
    return sum(done) / (time.perf_counter() - began)
