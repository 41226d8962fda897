"""Entity tags and ``If-None-Match`` (RFC 9110, 8.8.3 and 13.1.2). Pure."""

from __future__ import annotations

import re

__all__ = ["is_unchanged"]

_TAG = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def is_unchanged(if_none_match: bytes, tag: bytes) -> bool:
    """Return whether the client has this version of the entry already. Tags are compared weakly, ``*`` matches any."""
    return if_none_match == tag or if_none_match.strip() == b"*" or tag in _TAG.findall(if_none_match)
