"""What people are shown of a record's bytes."""

from __future__ import annotations

import pytest

from compactory_cli.views.terminal import _console, counted, legible


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b'{"name":"M\xc3\xbcller"}', '{"name":"Müller"}'),
        (b"\x1b[2Jgone\r\n", r"\x1b[2Jgone\r\n"),
        ("\u202e".encode(), r"\u202e"),
        (b"\x00\x00\x00\x07\xff", r"\x00\x00\x00\x07\xff"),
        (b"", ""),
        (None, "(tombstone)"),
    ],
)
def test_no_byte_of_a_row_steers_the_terminal(raw: bytes | None, shown: str) -> None:
    """Texts of a database are anybody's; an empty value is no tombstone."""
    assert legible(raw, "(tombstone)") == shown


def test_no_text_becomes_an_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    _console(stderr=False).print("'module:x:y' :smile:", markup=False)
    assert capsys.readouterr().out == "'module:x:y' :smile:\n"


@pytest.mark.parametrize(("count", "text"), [(0, "0 records"), (1, "1 record"), (1234, "1,234 records")])
def test_one_is_no_plural(count: int, text: str) -> None:
    assert counted(count, "record") == text
    assert (counted(1, "entry", "entries"), counted(2, "entry", "entries")) == ("1 entry", "2 entries")
