"""Whole numbers in JSON that do not fit into 64 bits, which orjson reads as rounded doubles. Pure."""

from __future__ import annotations

import re

__all__ = ["beyond_64_bits"]

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_WHOLE = re.compile(rb"(?<![0-9.eE+])(?<![eE]-)-?[0-9]{19,}(?![0-9.eE])")


def beyond_64_bits(body: bytes) -> str | None:
    """Return the first whole number outside of texts that does not fit into 64 bits, shortened; None without any."""
    if b"0" * 19 not in body.translate(_DIGITS):  # 64 bits have 19 digits
        return None
    for number in _WHOLE.findall(_TEXT.sub(b"", body)):
        if len(number) > 20 or not -(1 << 63) <= int(number) < 1 << 64:
            return number.decode() if len(number) <= 40 else f"{number[:37].decode()}..."
    return None
