"""Lines of CSV files → records, compared with Python's own reader. No Spark."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compactory.errors import ConfigError
from compactory_connectors.spark.rules.rules import ReadOptions
from compactory_connectors.spark.sources import joined_lines
from compactory_connectors.spark.sources.csv_records import MOST_LINES, Dialect, Joiner, Record, header, header_names
from compactory_connectors.spark.sources.joined_lines import JoinLines

OPTIONS = ReadOptions()
FIELDS = st.text(st.sampled_from('ab" ,\n\r;é'), max_size=6)
ROWS = st.lists(st.lists(FIELDS, min_size=2, max_size=3), min_size=1, max_size=8)


def records(text: bytes, options: ReadOptions = OPTIONS) -> list[Record]:
    joiner, found = Joiner(Dialect.of(options)), []
    for number, line in enumerate(text.split(b"\n"), 1):
        found += list(joiner.line(number, line))
    return [*found, *joiner.end()]


def written(rows: list[list[str]], quoting: int, ending: str) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, quoting=quoting, lineterminator=ending).writerows(rows)  # type: ignore[arg-type]
    return out.getvalue().removesuffix(ending).encode()


@settings(deadline=None)
@given(ROWS, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.sampled_from(["\n", "\r\n"]))
def test_records_are_those_that_were_written(rows: list[list[str]], quoting: int, ending: str) -> None:
    if quoting == csv.QUOTE_MINIMAL:  # Python's writer leaves a carriage return without quotes
        rows = [[field.replace("\r", "") for field in row] for row in rows]
    text = written(rows, quoting, ending)
    found = records(text)
    assert all(record.fault is None for record in found)
    texts = [record.text.removesuffix(b"\r") if ending == "\r\n" else record.text for record in found]
    assert [row for each in texts for row in csv.reader(io.StringIO(each.decode(), newline=""))] == rows
    assert b"\n".join(record.text for record in found) == text
    lines = [1 + text[: text.index(texts[0])].count(b"\n")]
    for record in found[:-1]:
        lines.append(lines[-1] + 1 + record.text.count(b"\n"))
    assert [record.line for record in found] == lines


def test_rows_between_two_stray_quotes_are_not_lost() -> None:
    lines = [b'1,"Gold,de', b"2,Silver,se", b'3,"Bronze",no', b'4,"two\nlines",de', b"5,Tin,de"]
    joiner, text = Joiner(Dialect.of(OPTIONS), fields=3), b"\n".join(lines)
    found = [record for number, line in enumerate(text.split(b"\n"), 1) for record in joiner.line(number, line)]
    fault = "a quote opened on line 1 ends on line 3, where the columns no longer fit"
    assert [(record.line, record.text, record.fault) for record in [*found, *joiner.end()]] == [
        (line, text, fault if line == 1 else None) for line, text in zip((1, 2, 3, 4, 6), lines, strict=True)
    ]


def test_many_stray_quotes_are_each_one_bad_line() -> None:
    joiner, count = Joiner(Dialect.of(OPTIONS), fields=2), 2 * MOST_LINES
    found = [record for number in range(1, count + 1) for record in joiner.line(number, b'"a,b')]
    assert [(record.line, record.fault is None) for record in [*found, *joiner.end()]] == [
        (number, False) for number in range(1, count + 1)
    ]


@settings(deadline=None)
@given(ROWS, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.integers(1, 5), st.integers(1, 3))
def test_batches_and_files_change_nothing(rows: list[list[str]], quoting: int, size: int, files: int) -> None:
    text = written(rows, quoting, "\n")
    lines = [(line, f"{file}.csv") for file in range(files) for line in text.split(b"\n")]
    batches = [
        pa.RecordBatch.from_arrays(
            [pa.array([line for line, _ in part], pa.binary()), pa.array([file for _, file in part])],
            names=["value", "file"],
        )
        for part in (lines[start : start + size] for start in range(0, len(lines), size))
    ]
    joined = [
        row for batch in JoinLines(Dialect.of(OPTIONS), ["f", "l", "x"])(iter(batches)) for row in batch.to_pylist()
    ]
    wanted = [(record.text, f"{file}.csv", record.line) for file in range(files) for record in records(text)]
    assert [(row["value"], row["f"], row["l"]) for row in joined] == wanted


def test_a_quote_that_is_never_closed_takes_no_other_record_along() -> None:
    found = records(b'1,a\n2,"b\n3,c\n4,d')
    assert [(record.line, record.text, record.fault) for record in found] == [
        (1, b"1,a", None),
        (2, b'2,"b', "a quote opened on line 2 is never closed"),
        (3, b"3,c", None),
        (4, b"4,d", None),
    ]


def test_a_record_has_an_end() -> None:
    many = b"\n".join([b'1,"a', *[b"2,b"] * (MOST_LINES + 5), b'3,"c"'])
    found = records(many)
    assert len(found) == MOST_LINES + 7
    assert [record.fault for record in found if record.fault] == [
        "a quote opened on line 1 is not closed within 1,000 lines"
    ]


def test_a_quote_within_a_field_opens_nothing() -> None:
    assert [record.text for record in records(b'1,5" pipe\n2,x')] == [b'1,5" pipe', b"2,x"]


@pytest.mark.parametrize(
    ("options", "lines", "wanted"),
    [
        ({}, [b'1,5" pipe,"long', b'text"'], [b'1,5" pipe,"long\ntext"']),
        ({}, [b'5","long', b'text",5" pipe'], [b'5","long\ntext",5" pipe']),
        ({"escape": "\\"}, [b'1,"a \\"b', b'c\\" d"'], [b'1,"a \\"b\nc\\" d"']),
        ({"delimiter": "\t"}, [b'5"\t"x', b'y"', b"2\t3"], [b'5"\t"x\ny"', b"2\t3"]),
        ({"delimiter": "§", "encoding": "latin-1"}, [b'\xe95"\xa7"x', b'y"'], [b'\xe95"\xa7"x\ny"']),
        ({}, [b'"a ""b""","c"', b"1,2"], [b'"a ""b""","c"', b"1,2"]),
    ],
)
def test_quotes_whose_number_says_nothing(options: dict[str, str], lines: list[bytes], wanted: list[bytes]) -> None:
    """An even number of quotes may leave one open: where one is in a field without quotes, or has an escape."""
    dialect = Dialect.of(ReadOptions(**options))  # type: ignore[arg-type]
    batch = pa.RecordBatch.from_arrays([pa.array(lines, pa.binary()), pa.array(["f"] * len(lines))], ["value", "file"])
    found = [row["value"] for each in JoinLines(dialect, ["f", "l", "x"])(iter([batch])) for row in each.to_pylist()]
    assert found == wanted


def test_an_escape_of_its_own() -> None:
    options = ReadOptions(escape="\\", delimiter=";", quote="'")
    assert [record.text for record in records(b"1;'it\\'s\nfine'\n2;x", options)] == [b"1;'it\\'s\nfine'", b"2;x"]


def test_headers() -> None:
    found = header(b'\xef\xbb\xbf\r\n"Terminal\nId", Name ,"a ""b"""\r\n1,2,3', OPTIONS)
    assert found is not None
    assert header_names(found.text, OPTIONS, "a.csv") == ("Terminal\nId", "Name", 'a "b"')
    assert header(b" \n\r\n", OPTIONS) is None
    twice = header(b"k,v\r\r\n1,2\r\r\n", OPTIONS)
    assert twice is not None
    assert twice.text == b"k,v", "as the records are, of which it is one"
    with pytest.raises(ConfigError, match="lines have to end with LF or CR LF"):
        header_names(b"k,v\ra,1\rb,2", OPTIONS, "a.csv")


@given(st.lists(st.text('"", ab', max_size=20), min_size=1, max_size=8))
def test_which_lines_leave_quotes_open(lines: list[str]) -> None:
    """What a look at a whole batch finds is what the reading of each line comes to."""
    dialect = Dialect.of(OPTIONS)
    found = joined_lines.are_open(pa.array([line.encode() for line in lines], pa.binary()), dialect)
    assert found.to_pylist() == [Joiner(dialect)._fields_of(line.encode(), inside=False) is None for line in lines]


@settings(deadline=None)
@example(["", '"'], False, 1)
@given(st.lists(st.text('"", ab\r', max_size=20), max_size=8), st.booleans(), st.integers(1, 40))
def test_files_are_looked_through_in_pieces(lines: list[str], ended: bool, piece: int) -> None:
    """Whatever the size of the pieces, and with a newline at the end or without."""
    text = "\n".join(lines) + ("\n" if ended else "")
    dialect = Dialect.of(OPTIONS)
    wanted = any(Joiner(dialect)._fields_of(line.encode(), inside=False) is None for line in text.split("\n"))
    with tempfile.TemporaryDirectory() as folder, patch.object(joined_lines, "_CHUNK", piece):
        file = Path(folder, "a.csv")
        file.write_bytes(text.encode())
        assert joined_lines.any_open([file], dialect) is wanted
