"""Entity tags of entries and ``If-None-Match`` (RFC 9110, 8.8.3 and 13.1.2). Pure."""

from __future__ import annotations

import re

from compactory.records import Entry, Topic

__all__ = ["entity_tag", "is_unchanged"]

_TAG = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def entity_tag(topic: Topic | None, entry: Entry) -> bytes:
    """Return the tag of an entry: its record, in the topic of that identity (by name on a Kafka older than 2.8)."""
    identity = (topic and topic.topic_id) or entry.topic
    return b'"%b-%d-%d"' % (identity.encode(), entry.partition, entry.offset)


def is_unchanged(if_none_match: bytes, tag: bytes) -> bool:
    """Say whether the client has this very entry already. Tags are compared weakly, ``*`` matches any."""
    return if_none_match == tag or if_none_match.strip() == b"*" or tag in _TAG.findall(if_none_match)
