"""Reading one's own writes over HTTP: ``Compactory-Min-Offset`` says what must be visible, ``Prefer`` how long.

The one place where the store's threads and the event loop meet: the reader thread wakes the loop after it moved on,
the loop looks who is satisfied. No request holds a thread while it waits.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compactory.errors import ConfigError, NotReady, StoreClosed, StoreFailed, WaitTimeout
from compactory.records import Partition, StoreState
from compactory.store import GlobalStore
from compactory.token import Token

from .refusal import BadRequest, Stopping

__all__ = ["DEFAULT_WAIT", "LONGEST_WAIT", "MOST_TOKENS", "Freshness", "tokens_of", "wait_of"]

DEFAULT_WAIT = 1.0  # seconds
LONGEST_WAIT = 30.0  # seconds; a longer wish is cut to this (RFC 7240 lets a server)
MOST_TOKENS = 100
_LARGEST_OFFSET = 2**63 - 1
_WAIT = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9}(?:\.\d{1,9})?)\"?\s*(?:;.*)?", re.IGNORECASE | re.ASCII)


@dataclass(slots=True, eq=False)
class _Waiter:
    targets: Mapping[Partition, int]
    future: asyncio.Future[None]


def tokens_of(header: bytes, topic: str) -> list[Token]:
    """Return the tokens in a ``Compactory-Min-Offset``, a list separated by commas.

    A token of another topic says nothing about this directory. Raises BadRequest with every problem.
    """
    texts = [text.strip() for text in header.decode("latin-1").split(",")]
    if len(texts) > MOST_TOKENS:
        raise BadRequest(f"Compactory-Min-Offset: {len(texts)} tokens; {MOST_TOKENS} are the most")
    tokens: list[Token] = []
    problems: list[str] = []
    for text in texts:
        try:
            token = Token.parse(text)
        except (ConfigError, ValueError) as error:  # ValueError: thousands of digits
            problems.append(f"Compactory-Min-Offset: {error}" if len(text) < 300 else "Compactory-Min-Offset: too long")
            continue
        if token.topic != topic:
            problems.append(f"Compactory-Min-Offset: {text} is of another topic; this directory is read from {topic}")
        elif max(token.partition, token.offset) > _LARGEST_OFFSET:
            problems.append(f"Compactory-Min-Offset: {text} is beyond any offset")
        tokens.append(token)
    if problems:
        raise BadRequest(problems)
    return tokens


def wait_of(header: bytes | None) -> float:
    """Return the seconds in ``Prefer: wait=SECONDS`` (RFC 7240). What can't be read is ignored, as that RFC asks."""
    for preference in (header or b"").decode("latin-1").split(","):
        found = _WAIT.fullmatch(preference)
        if found:
            return min(float(found[1]), LONGEST_WAIT)
    return DEFAULT_WAIT


class Freshness:
    """Lets requests wait until the store has read far enough.

    ``wait`` belongs to one event loop's thread; the store's threads only knock on that loop.
    """

    def __init__(self, store: GlobalStore) -> None:
        self._store = store
        self.waiters: set[_Waiter] = set()  # requests that wait right now
        self._loop: asyncio.AbstractEventLoop | None = None
        self._knocked = False
        self._stopped = False  # no wait goes on
        store.subscribe(self._moved)

    def close(self, within: float) -> None:
        """Let waits go on for ``within`` seconds at most; they end with Stopping. For the loop's thread."""
        asyncio.get_running_loop().call_later(within, self._stop)

    async def wait(self, tokens: Iterable[Token], seconds: float) -> None:
        """Return when everything up to the tokens is visible.

        Raises NotReady before the store is ready, WaitTimeout with the gap, StoreFailed, StoreClosed, Stopping.
        """
        self._raise_unready()
        targets: dict[Partition, int] = {}
        for token in tokens:
            targets[token.place] = max(targets.get(token.place, 0), token.offset + 1)
        if not self._gap(targets):
            return
        end = self._end()
        if end is not None:
            raise end
        self._loop = asyncio.get_running_loop()
        waiter = _Waiter(targets, self._loop.create_future())
        self.waiters.add(waiter)
        try:
            if self._gap(targets):  # again: it may have moved before the waiter was known
                await asyncio.wait_for(waiter.future, seconds)
        except TimeoutError:
            raise self._late(targets, seconds) from None
        finally:
            self.waiters.discard(waiter)

    def _moved(self) -> None:
        """Called by the store's threads: wake the loop, once for any number of moves."""
        loop = self._loop
        if loop is None or not self.waiters or self._knocked:
            return
        self._knocked = True
        try:
            loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop is closed, and with it every request
            self._loop = None

    def _stop(self) -> None:
        self._stopped = True
        self._look()

    def _look(self) -> None:
        self._knocked = False
        end = self._end()
        positions = self._store.positions()
        for waiter in list(self.waiters):
            if waiter.future.done():
                continue
            if end is not None:
                waiter.future.set_exception(end)
            elif all(positions.get(place, -1) >= target for place, target in waiter.targets.items()):
                waiter.future.set_result(None)

    def _end(self) -> Exception | None:
        if self._stopped:
            return Stopping("the server shuts down; ask another one")
        state = self._store.state
        if state is StoreState.FAILED:
            return StoreFailed(f"the store failed: {self._store.failure}")
        return StoreClosed("the store is closed") if state is StoreState.CLOSED else None

    def _raise_unready(self) -> None:
        if self._store.state in (StoreState.NEW, StoreState.LOADING):
            raise NotReady("the store is loading: it answers once it has read to the high watermark")

    def _gap(self, targets: Mapping[Partition, int]) -> dict[Partition, int]:
        positions = self._store.positions()
        return {
            place: target - max(0, positions.get(place, 0))
            for place, target in targets.items()
            if positions.get(place, -1) < target
        }

    def _late(self, targets: Mapping[Partition, int], seconds: float) -> WaitTimeout:
        gap = self._gap(targets)
        behind = ", ".join(f"{part.topic}:{part.partition} by {missing}" for part, missing in gap.items())
        return WaitTimeout(f"not visible within {seconds:g} s: behind in {behind}", gap)
