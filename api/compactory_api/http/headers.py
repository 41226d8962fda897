"""The headers of a request by name. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable

__all__ = ["joined"]


def joined(headers: Iterable[tuple[bytes, bytes]], names: Container[bytes] | None = None) -> dict[bytes, bytes]:
    """Return these headers, or all; one that was sent several times is a list (RFC 9110, 5.3)."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if names is None or name in names:
            found[name] = value if name not in found else found[name] + b", " + value
    return found
