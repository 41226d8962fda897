"""The layout of the keys of a topic storage: their byte order is the order that readers need. Pure.

A topic storage is one ordered sequence of keys. The first two bytes are the number of a *part* (a mapping or an index
of one directory; 0 is the storage's own state), then comes the lookup or topic key as it is. In an index the term comes
first, as canonical bytes that begin with their length: one prefix per term, so that a term under which 100,000 keys are
filed costs no more to change than any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any

from compactory.codec.decoding import Term

__all__ = ["MAX_PARTS", "STATE", "after", "part_prefix", "posting_term", "term_of", "term_prefix"]

_NUMBER = Struct(">H")
_LENGTH = Struct(">I")

MAX_PARTS = 0xFFFE
STATE = _NUMBER.pack(0)
_TEXT, _WHOLE, _FRACTION, _TRUTH, _SEVERAL = b"s", b"i", b"f", b"b", b"t"


def part_prefix(number: int) -> bytes:
    """Return what the keys of a part begin with."""
    return _NUMBER.pack(number)


def after(prefix: bytes) -> bytes:
    """Return the first key that is greater than all that begin with ``prefix`` (which is not all 0xFF)."""
    shortened = prefix.rstrip(b"\xff")
    return shortened[:-1] + bytes((shortened[-1] + 1,))


def term_prefix(term: Term) -> bytes:
    """Return what the postings of a term begin with, after the part's number.

    Terms that Python takes for equal (1, 1.0) give equal bytes, others never do, and none is a prefix of another.
    """
    encoded = _encoded(term)
    return _LENGTH.pack(len(encoded)) + encoded


def posting_term(posting: bytes) -> bytes:
    """Return the term's prefix of a posting (without its part's number)."""
    return posting[: _LENGTH.size + _LENGTH.unpack_from(posting)[0]]


def term_of(prefix: bytes) -> Term:
    """Return the term of a prefix: the inverse of `term_prefix`."""
    return _decoded(prefix[_LENGTH.size :])


def _encoded(term: Term) -> bytes:
    if isinstance(term, str):
        return _TEXT + str.encode(term, errors="surrogatepass")  # a looked-up text may be half of a pair
    if isinstance(term, bool):
        return _TRUTH + (b"1" if term else b"0")
    if isinstance(term, int):
        return _WHOLE + b"%x" % term  # decimal would be refused beyond 4,300 digits
    if isinstance(term, float):
        return _encoded(int(term)) if term.is_integer() else _FRACTION + float.__repr__(term).encode()
    return _SEVERAL + b"".join(map(term_prefix, term))


def _decoded(encoded: bytes) -> Any:
    kind, body = encoded[:1], encoded[1:]
    if kind == _TEXT:
        return body.decode(errors="surrogatepass")
    if kind == _TRUTH:
        return body == b"1"
    if kind == _WHOLE:
        return int(body, 16)
    if kind == _FRACTION:
        return float(body)
    return tuple(_parts(body))


def _parts(joined: bytes) -> Iterator[Any]:
    while joined:
        prefix = posting_term(joined)
        yield term_of(prefix)
        joined = joined[len(prefix) :]
