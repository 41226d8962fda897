"""Java's numbers: how integers narrow, clamp and divide, and the text of doubles and floats.

``Double.toString`` and ``Float.toString`` are those of Java 19 and later: the shortest digits that read back the same.
Java 17 and earlier print a digit more for some numbers (JDK-4511638), none of them a decimal of up to 15 digits. The
current images of Kafka and of Confluent run Java 21.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

__all__ = [
    "clamped",
    "divided",
    "double_text",
    "double_text_of",
    "float32_of",
    "float_text",
    "float_text_of",
    "wrapped",
]

_AS_IT_IS = re.compile(rb"-?(?:[1-9]\d{0,6}|0(?!\.000))\.\d+|NaN|-?Infinity")
_WHOLE = re.compile(rb"-?(?:[1-9]\d{0,6}|0)")
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?")


def wrapped(value: int, bits: int) -> int:
    """Return ``value`` in ``bits`` bits, as Java narrows an integer."""
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def clamped(value: int) -> int:
    """Return the nearest number of 64 bits."""
    return max(-(1 << 63), min((1 << 63) - 1, value))


def divided(value: int, unit: int) -> int:
    """Return ``value / unit``, cut off toward zero."""
    return value // unit if value >= 0 else -(-value // unit)


def double_text(raw: bytes) -> bytes:
    """Return Java's text of a float8 that Postgres wrote with its shortest digits.

    Of some large numbers Postgres writes more digits than Java: it takes no decimal halfway to the next number.
    """
    return _quick(raw) or _rewritten(repr(float(raw)), float)


def float_text(raw: bytes) -> bytes:
    """Return Java's text of a float4 that Postgres wrote with its shortest digits."""
    return _quick(raw) or _rewritten(_shortest32(float32_of(raw.decode())), float32_of)


def double_text_of(value: float) -> bytes:
    """Return Java's text of a double."""
    return double_text(_postgres(repr(value)))


def float_text_of(value: float) -> bytes:
    """Return Java's text of a float; ``value`` must be that of a float32."""
    return float_text(_postgres(_shortest32(value)))


def _shortest32(value: float) -> str:
    shortest = (text for text in (f"{value:.{digits}g}" for digits in range(1, 10)) if float32_of(text) == value)
    return next(shortest, repr(value))


def _postgres(text: str) -> bytes:
    return {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}.get(text) or text.removesuffix(".0").encode()


def _quick(raw: bytes) -> bytes | None:
    """Return Java's text if Postgres wrote the same, or only left out ``.0``; else None."""
    if _AS_IT_IS.fullmatch(raw):
        return raw
    if _WHOLE.fullmatch(raw):
        return raw + b".0"
    return None


def float32_of(text: str) -> float:
    """Return the float32 nearest to the double of the text, as a Python float."""
    return float(struct.unpack("f", struct.pack("f", float(text)))[0])


def _rewritten(text: str, read: Callable[[str], float]) -> bytes:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError("not a number as Postgres writes it")
    sign, whole, fraction, exponent = match[1], match[2], match[3] or "", int(match[4] or 0)
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return f"{sign}0.0".encode()
    point = len(whole) + exponent - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) == 1:
        digits = _second_digit(digits, point, read)
    return (sign + _with_point(digits, point)).encode()


def _second_digit(digit: str, point: int, read: Callable[[str], float]) -> str:
    """Return the digits of a number with one digit: Java writes the closest two, 4.9E-324 for 5E-324."""
    value = read(f"0.{digit}e{point}")
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    closest = mantissa.replace(".", "")
    return closest if int(exponent) + 1 == point and read(f"{mantissa}e{exponent}") == value else digit


def _with_point(digits: str, point: int) -> str:
    """Return ``digits`` with the point after ``point`` of them: plain from 10^-3 to 10^7, else with an exponent."""
    if 0 < point <= 7:
        digits = digits.ljust(point, "0")
        return f"{digits[:point]}.{digits[point:] or '0'}"
    if -3 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    return f"{digits[0]}.{digits[1:] or '0'}E{point - 1}"
