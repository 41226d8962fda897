"""Why a store does not answer in a state. Pure."""

from __future__ import annotations

from compactory.errors import CompactoryError, NotReady, StoreClosed, StoreFailed
from compactory.records import StoreState

__all__ = ["refusal"]


def refusal(state: StoreState, cause: BaseException | None) -> CompactoryError:
    """Return the error that says why the store does not answer now; ``cause`` is what ended a FAILED one."""
    if state is StoreState.CLOSED:
        return StoreClosed("the store is closed; make a new one")
    if state is StoreState.FAILED:
        return StoreFailed(f"the store failed: {cause}", cause)
    if state is StoreState.NEW:
        return NotReady("the store was not started: call start(), or use it in a with block")
    return NotReady("the store is loading: it answers once it has read to the high watermark")
