"""docs/guarantees.md states the promises; `make docs` lists the tests that prove them beside it."""

from __future__ import annotations

import re

import pytest

from docs.generate.proofs import proofs, titles
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
STATES = ("whole", "part", "not yet")


def sections() -> dict[int, str]:
    """Number → text of every guarantee."""
    parts = re.split(r"^## (\d+)\. ", PAGE.read_text(), flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_all_are_numbered_and_say_their_state() -> None:
    assert list(sections()) == list(range(1, len(sections()) + 1))
    for number, text in sections().items():
        assert re.search(rf"^State: \*\*({'|'.join(STATES)})\*\*", text, re.MULTILINE), f"guarantee {number}"


@pytest.mark.parametrize("number", titles())
def test_each_has_proofs(number: int) -> None:
    assert proofs()[number] or "**not yet**" in sections()[number]


def test_no_test_cites_a_guarantee_that_is_not_there() -> None:
    assert set(proofs()) == set(titles())
