"""Prints messages and records that were set aside, and those that wait behind them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from .terminal import decoded, legible, number, print_json, print_table

__all__ = ["show_failed"]


def show_failed(
    items: Sequence[Any], noun: str, place: Sequence[str], json_names: Sequence[str], *, none: str, as_json: bool
) -> None:
    """Print items. ``place`` names the attributes of their place, ``json_names`` attributes for programs only.

    ``none`` is the text for people if there are no items.
    """
    if as_json:
        names = (*place, "bytes", "reason", *json_names, "failed_at")
        print_json({f"{noun}s": [{name: _plain(item, name) for name in ("key", *names)} for item in items]})
        return
    print_table(
        (*place, "key", "bytes", "failed", "reason"),
        (
            (
                *(getattr(item, name) for name in place),
                legible(item.key, "–"),
                number(item.bytes) if item.bytes is not None else None,
                f"{item.failed_at:%Y-%m-%d %H:%M:%S}",
                item.reason or "waits for an earlier one of its key",
            )
            for item in items
        ),
        right=("id", "offset", "bytes"),
        none=none,
    )


def _plain(item: Any, name: str) -> Any:
    """Return an attribute as JSON."""
    value = getattr(item, name)
    if isinstance(value, datetime):
        return value.isoformat()
    return decoded(value) if name == "key" else value
