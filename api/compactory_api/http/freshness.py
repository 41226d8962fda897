"""Reads of one's own writes: ``Compactory-Min-Offset`` names the position, ``Prefer`` limits the wait.

The store does the waiting (`compactory.waiting`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from compactory.errors import ConfigError, NotReady
from compactory.records import Partition, StoreState
from compactory.store import GlobalStore
from compactory.token import Token
from compactory.waiting import Waiting

from .problem import BadRequest, Stopping

__all__ = ["DEFAULT_WAIT", "LONGEST_WAIT", "MOST_TOKENS", "Freshness", "max_age_of", "tokens_of", "wait_of"]

DEFAULT_WAIT = 1.0  # seconds
LONGEST_WAIT = 30.0  # seconds; a longer wait is shortened to this, as RFC 7240 allows
MOST_TOKENS = 100
_LARGEST_OFFSET = 2**63 - 1
_WAIT = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9}(?:\.\d{1,9})?)\"?\s*(?:;.*)?", re.IGNORECASE | re.ASCII)

_MAX_AGE = re.compile(r"(?:^|,)\s*max-age\s*=\s*\"?(\d{1,9})\"?\s*(?:,|$)", re.IGNORECASE | re.ASCII)


def tokens_of(header: bytes, topic: str) -> list[Token]:
    """Return the tokens in a ``Compactory-Min-Offset``, a list separated by commas.

    Raises BadRequest with every problem; a token of another topic is one.
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
    """Return the seconds in ``Prefer: wait=SECONDS`` (RFC 7240). Other values are ignored, as that RFC asks."""
    for preference in (header or b"").decode("latin-1").split(","):
        match = _WAIT.fullmatch(preference)
        if match:
            return min(float(match[1]), LONGEST_WAIT)
    return DEFAULT_WAIT


def max_age_of(header: bytes) -> float | None:
    """Return the seconds in ``Cache-Control: max-age=SECONDS``; None if the header has none. 0 counts as 1.

    Browsers send ``max-age=0`` to load a page again, and no data is younger than now.
    """
    match = _MAX_AGE.search(header.decode("latin-1"))
    return None if match is None else max(float(match[1]), 1.0)


class Freshness:
    """Waits of requests until the store has read far enough; no wait needs a thread. Owned by one event loop."""

    def __init__(self, store: GlobalStore) -> None:
        self._store = store
        self._waiting = Waiting(store)
        self._is_stopped = False

    @property
    def waiters(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    def close(self, within: float) -> None:
        """End all waits with Stopping after ``within`` seconds. Call it in the event loop."""
        asyncio.get_running_loop().call_later(within, self._stop)

    async def wait(self, headers: Mapping[bytes, bytes], topic: str) -> None:
        """Return when the positions in ``Compactory-Min-Offset`` are visible. ``Prefer`` limits the wait.

        Raises BadRequest, NotReady before the store is ready, WaitTimeout with the gap, StoreFailed, StoreClosed,
        Stopping.
        """
        if (header := headers.get(b"compactory-min-offset")) is None:
            return
        tokens = tokens_of(header, topic)
        if self._store.state in (StoreState.NEW, StoreState.LOADING):
            raise NotReady("the store is loading: it answers once it has read to the high watermark")
        targets: dict[Partition, int] = {}
        for token in tokens:
            targets[token.place] = max(targets.get(token.place, 0), token.offset + 1)
        if self._is_stopped and self._waiting.gap(targets):
            raise _stopping()
        await self._waiting.until(targets, wait_of(headers.get(b"prefer")), "Compactory-Min-Offset")

    def _stop(self) -> None:
        self._is_stopped = True
        self._waiting.end(_stopping)


def _stopping() -> Stopping:
    return Stopping("the server shuts down; ask another one")
