"""Values that are checked without being read."""

from __future__ import annotations

import json
import re

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory.codec.decoding import check_objects


@given(st.data())
def test_a_value_that_is_checked_without_being_read_can_be_read(data: st.DataObject) -> None:
    """Damaged objects: the check refuses no less than the reader; numbers beyond a double's range are left out."""
    texts = st.text() | st.sampled_from(["\\ud800", "€", "\x01"])
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    documents = st.dictionaries(
        texts, st.recursive(st.none() | st.booleans() | numbers | texts, st.lists, max_leaves=8)
    )
    value = bytearray(json.dumps(data.draw(documents), ensure_ascii=data.draw(st.booleans())).encode(errors="replace"))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        check_objects([b"{}", bytes(value)])
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return
    if re.search(rb"\d[eE]", value) is None:
        assert isinstance(orjson.loads(value), dict)


@pytest.mark.parametrize(
    "value", [b"[]", b"null", b"1", b'{"a":1', b'{"a":1}{}', b'{"a":"\xff"}', b'{"\xed\xa0\x80":1}']
)
def test_a_value_that_is_no_object_is_refused_without_being_read(value: bytes) -> None:
    with pytest.raises((UnicodeDecodeError, msgspec.DecodeError)):
        check_objects([b"{}", value])
