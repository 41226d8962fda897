"""Runs code in a forked child, which can't outlive its test: one that hangs says where, and is gone."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, Final, NoReturn

__all__ = ["forked"]

PATIENCE: Final = 30.0


def forked(work: Callable[[], object], patience: float = PATIENCE) -> Any:
    """What ``work`` returns in a forked child.

    Raises AssertionError with the child's traceback where it raises, and with its stacks where it has not ended after
    ``patience`` seconds. What earlier tests have left is collected before: a Kafka client that is destroyed in a child
    waits for threads that it never had.
    """
    gc.collect()
    receiving, sending = os.pipe()
    with tempfile.TemporaryFile() as stacks:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 and later, where there are threads
            child = os.fork()
        if child == 0:
            os.close(receiving)
            faulthandler.register(signal.SIGUSR2, file=stacks)  # its watchdog would wait for that of the parent
            _run(work, sending)
        os.close(sending)
        with os.fdopen(receiving, "rb") as answers:
            if not wait([answers.fileno()], patience):
                os.kill(child, signal.SIGUSR2)
                wait([answers.fileno()], 1)
                os.kill(child, signal.SIGKILL)
            answer = answers.read()
        _, status = os.waitpid(child, 0)
        stacks.seek(0)
        assert status == 0, f"the child ended with {status}\n{answer.decode(errors='replace')}{stacks.read().decode()}"
    return pickle.loads(answer)  # our own child's


def _run(work: Callable[[], object], sending: int) -> NoReturn:
    status = 1
    try:
        answer = pickle.dumps(work())
        status = 0
    except BaseException:  # noqa: BLE001  # the parent raises it again
        answer = traceback.format_exc().encode()
    try:
        os.write(sending, answer)
    finally:
        os._exit(status)
