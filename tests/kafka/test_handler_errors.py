"""A handler's error is shown without what it was given."""

from __future__ import annotations

from compactory.errors import WriteRefused
from compactory_connectors.handler_errors import described, frames
from compactory_connectors.processors import Failed

SECRET = "401 for https://provider.example/?api_key=SECRET"


def test_the_class_alone_unless_the_text_is_ours() -> None:
    assert described(RuntimeError(SECRET)) == "RuntimeError"
    assert described(Failed("no money"), Failed) == "Failed: no money"
    assert described(WriteRefused("order: missing")) == "WriteRefused: order: missing"
    assert described(WriteRefused("\ud800" * 2000)).isascii()


def test_frames_have_no_values() -> None:
    try:
        raise RuntimeError(SECRET)
    except RuntimeError as error:
        lines = frames(error.__traceback__)
    assert lines.endswith("in test_frames_have_no_values")
    assert "SECRET" not in lines
