"""Keys and values that are compared: cut to what matters for people, whole for programs."""

from __future__ import annotations

import base64

from .terminal import legible

__all__ = ["cut", "named"]

_WIDTH = 60
"""Characters of a value that are shown around the place where the two differ."""


def cut(value: bytes | None, other: bytes | None, width: int = _WIDTH) -> str:
    """A value for people: of a long one what is around the first place where it differs from the other."""
    text = legible(value, "–")
    if len(text) <= width:
        return text
    its = legible(other)
    first = next((at for at, (a, b) in enumerate(zip(text, its, strict=False)) if a != b), min(len(text), len(its)))
    start = 0 if first < width * 2 // 3 else min(first - width // 3, len(text) - width)
    end = start + width
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def named(name: str, raw: bytes | None) -> dict[str, str | None]:
    """Bytes as text, and in base64 where they are none."""
    if raw is None:
        return {name: None}
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode()}
