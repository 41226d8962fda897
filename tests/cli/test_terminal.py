"""What people are shown of a record's bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from compactory_cli.views.tables import Column, Table, print_tables, time_text
from compactory_cli.views.terminal import _new_console, counted, legible, number, output, use_json


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
    _new_console(stderr=False).print("'module:x:y' :smile:", markup=False)
    assert capsys.readouterr().out == "'module:x:y' :smile:\n"


@pytest.mark.parametrize(("count", "text"), [(0, "0 records"), (1, "1 record"), (1234, "1,234 records")])
def test_one_is_no_plural(count: int, text: str) -> None:
    assert counted(count, "record") == text
    assert (counted(1, "entry", "entries"), counted(2, "entry", "entries")) == ("1 entry", "2 entries")


@dataclass
class _Row:
    name: str
    size: int
    at: datetime
    key: bytes | None = None


def test_a_list_is_a_table_for_people_and_a_document_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [_Row("a", 1234, datetime(2024, 1, 31, 10, tzinfo=UTC), b"k")]
    columns = (Column("name"), Column("bytes", number, "size", right=True), Column("at", time_text), Column("key"))
    table = Table("rows", rows, columns)
    use_json(True)
    print_tables(table, more=1)
    use_json(False)
    document = {"name": "a", "size": 1234, "at": "2024-01-31T10:00:00+00:00", "key": "k"}
    assert json.loads(capsys.readouterr().out) == {"rows": [document], "more": 1}
    output.cache_clear()
    print_tables(replace(table, items=[_Row("b", 1, rows[0].at)]), replace(table, items=[], none="none"))
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["name", "bytes", "at", "key"]
    assert out[2].split() == ["b", "1", "2024-01-31", "10:00:00", "–"]
    assert out[3:] == ["none"]
    output.cache_clear()
