"""Tokens for SASL OAUTHBEARER from a callable of the user (``oauth_cb``), called with care.

A new client of the library waits ten seconds for a token, looking once a second, and then says only that there is none.
The first request to a `TokenSource` raises the error at once. A thread of the library asks for later tokens, even if
nobody polls. Checked on confluent-kafka 2.16.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any

from compactory.errors import ConfigError, Unreachable

__all__ = ["TokenSource"]

_SHAPE = "it must return (token, when it ends in seconds since the epoch[, principal, extensions])"
_FRESH = 0.7  # part of a token's life during which new clients share it; the library asks again at 0.8


class TokenSource:
    """Hands the user's tokens to all clients of one `Kafka`; a new one is requested once, not once a client.

    Thread-safe: the user's callable is never called twice at a time. Our message names only the type of its error,
    because the text may quote a secret. Raises Unreachable for an error of the callable, ConfigError if its answer is
    no token.
    """

    def __init__(self, callback: Callable[[str], Any]) -> None:
        self._callback = callback
        self._lock = Lock()  # guards the fields below and keeps calls of the callback apart
        self._answer: tuple[Any, ...] = ()
        self._fresh_until = 0.0

    def __repr__(self) -> str:
        return "TokenSource([hidden])"

    def __call__(self, config: str | None) -> tuple[Any, ...]:
        """Return a token as the client library wants it; called by the library and before a client is made."""
        with self._lock:
            if time.time() >= self._fresh_until:
                self._answer = _checked(self._ask(config))
                received_at = time.time()
                self._fresh_until = received_at + _FRESH * (float(self._answer[1]) - received_at)
            return self._answer

    def hidden(self, text: str) -> str:
        """Return ``text`` without the token."""
        token = str(self._answer[0]) if self._answer else ""
        return text.replace(token, "[hidden]") if token else text

    def _ask(self, config: str | None) -> Any:
        try:
            return self._callback(config or "")
        except Exception as error:  # noqa: BLE001 - any error of the user's callable means that there is no token
            kind, trace = type(error).__name__, error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
        raise Unreachable("identity provider", f"oauth_cb gave no token: it raised {kind}{place}")


def _checked(answer: Any) -> tuple[Any, ...]:
    if not isinstance(answer, tuple) or not 2 <= len(answer) <= 4 or not isinstance(answer[0], str) or not answer[0]:
        raise ConfigError(f"oauth_cb returned {type(answer).__name__} that is no token: {_SHAPE}")
    if isinstance(answer[1], bool) or not isinstance(answer[1], int | float):
        raise ConfigError(f"oauth_cb returned {type(answer[1]).__name__}, no number, as a token's expiry: {_SHAPE}")
    if (age := time.time() - answer[1]) >= 0:
        raise ConfigError(f"oauth_cb returned a token that ended {age:.0f} s ago: {_SHAPE}")
    return answer
