"""Tokens as text, and what they ask of a reader."""

from __future__ import annotations

import pickle

import pytest

from compactory import ConfigError, Partition, Token, WaitTimeout
from compactory.records import Topic
from compactory.token import targets


def test_the_text_says_the_place() -> None:
    """Guarantee 6: it goes through headers and logs and comes back; the topic's id stays in the process."""
    token = Token("terminals", 3, 42, "NWsfuAwhRNiICR47lauusw")
    assert str(token) == "terminals:3:42"
    assert token.place == Partition("terminals", 3)
    assert Token.parse(str(token)) == Token("terminals", 3, 42)
    assert Token.parse(" a.b_c-d:0:9223372036854775807 ").offset == 2**63 - 1
    assert pickle.loads(pickle.dumps(token)) == token
    assert len({token, Token("terminals", 3, 42, "NWsfuAwhRNiICR47lauusw"), Token("terminals", 3, 42)}) == 2


@pytest.mark.parametrize(
    "text",
    ["", ":", "t", "t:0", "t:0:", "t::1", ":0:1", "t:-1:0", "t:0:-1", "t:+1:0", "t:0:1.5", "t:0:1e3", "t:0x1:0",
     "t:0:٣", "t:0:²", "t: 0:1", "t:0:1:2", "t:0:1_0", "t:0:9223372036854775808", "t:0:" + "9" * 5000],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match="is not a token: expected topic:partition:offset, say terminals:0:42"
    ) as caught:
        Token.parse(text)
    assert len(str(caught.value)) < 400


def test_the_farthest_token_of_each_partition_counts() -> None:
    """Guarantee 6."""
    topics = {
        "a": Topic(name="a", topic_id="id-a", partitions=(0, 1)),
        "b": Topic(name="b", topic_id=None, partitions=(0,)),
    }
    tokens = [Token("a", 0, 5), Token("a", 0, 3, "id-a"), Token("a", 1, 0), Token("b", 0, 7, "whatever")]
    assert targets(tokens, topics) == {Partition("a", 0): 6, Partition("a", 1): 1, Partition("b", 0): 8}
    assert targets([], topics) == {}
    with pytest.raises(ConfigError, match="does not read; it reads a, b"):
        targets([*tokens, Token("c", 0, 0)], topics)
    with pytest.raises(WaitTimeout, match="deleted since") as caught:
        targets([*tokens, Token("a", 1, 9, "another")], topics)
    assert caught.value.gap == {Partition("a", 1): 10}


def test_a_text_is_no_token() -> None:
    with pytest.raises(ConfigError, match=r"Token\.parse"):
        targets(["a:0:5"], {})  # type: ignore[list-item]
