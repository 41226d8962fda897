"""A forked child of a test ends with it, whatever it does."""

from __future__ import annotations

import ctypes

import pytest

from tests.forks import forked


def test_what_a_child_comes_to() -> None:
    assert forked(lambda: {"a": 1}) == {"a": 1}
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        forked(lambda: 1 / 0)


def test_a_child_that_hangs_says_where_and_is_gone() -> None:
    """Also one that holds the interpreter's lock."""

    def hang() -> None:
        while True:
            ctypes.PyDLL(None).pause()  # returns after a signal

    with pytest.raises(AssertionError, match="in hang"):
        forked(hang, patience=1)
