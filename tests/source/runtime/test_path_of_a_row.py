"""How many functions a changed row passes on its way from the query to Kafka's client: a newcomer has to read them."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from types import FrameType
from typing import Any

import pytest

from compactory_connectors.schema import Adoption, adopt, install
from compactory_connectors.source.runtime.session import Session
from compactory_connectors.source.status.board import StatusBoard
from tests.source.conftest import Bench

_FEWER_THAN = 20


class Calls:
    """The calls of the source's functions from when a poll's rows have come to ``Producer.produce``.

    Of an adopted table they come with the statement that begins the poll; ``ChunkReader.read_page`` takes them.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.produced = False

    def __call__(self, frame: FrameType, event: str, what: Any) -> None:
        code = frame.f_code
        if self.produced:
            return
        if event == "c_call" and getattr(what, "__name__", "") == "produce":
            self.produced = True
        elif event == "call" and _fetches(frame):
            self.names.clear()
        elif event == "call" and _counts(module := frame.f_globals.get("__name__", ""), code.co_qualname):
            self.names.append(f"{module}.{code.co_qualname}")


def _counts(module: str, name: str) -> bool:
    """Not what the compiled function of a row calls, nor comprehensions and what dataclasses have by themselves."""
    inner = name.endswith(("comp>", "genexpr>", "__post_init__")) or name.startswith("__create_fn__")
    others = ".connect." in module or module.endswith(".watched_connection")
    return module.startswith("compactory_connectors.") and not inner and not others


def _fetches(frame: FrameType) -> bool:
    if frame.f_code.co_qualname == "Connection.execute":
        statement = frame.f_locals["query"]
        return "FETCH" in (statement if isinstance(statement, str) else statement.as_string(None))
    return frame.f_code.co_qualname == "ChunkReader.read_page"


@pytest.mark.parametrize("adopted", [True, False])
def test_a_changed_row_passes_few_functions(bench: Bench, adopted: bool) -> None:
    """Guarantees are easier to keep where the path that has to keep them can be read in one go."""
    bench.add("T1")
    if adopted:
        install(bench.sql)
        adopt(bench.sql, Adoption(table="terminal_acquirer", key=("terminal_id",)))
    session = Session.open(bench.connector(), bench.kafka, StatusBoard("path"), create_topics=True)
    with closing(session):
        while session.poll_tables(threading.Event()):
            pass
        bench.add("T2")
        calls = Calls()
        sys.setprofile(calls)
        try:
            while not session.poll_tables(threading.Event()):
                session.wait(threading.Event())
        finally:
            sys.setprofile(None)
    assert calls.produced
    functions = dict.fromkeys(calls.names)  # a snapshot is written twice within an offset, and read once
    assert len(functions) < _FEWER_THAN, "\n".join(functions)
