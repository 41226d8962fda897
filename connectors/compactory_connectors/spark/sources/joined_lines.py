"""Lines in which quotes are open at the end, or may be; and the lines of whole files, in order → their records.

:class:`JoinLines` runs on executors. Batches without open quotes are handed on.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from ..record_batch import Batches
from .csv_records import Dialect, Joiner, Record

__all__ = ["JoinLines", "any_open", "are_open"]

_compute: Any = pyarrow.compute  # makes its functions when it is imported, which type checkers do not see
_CHUNK: Final = 1 << 20


def are_open(lines: pa.Array, dialect: Dialect) -> pa.Array:
    """Whether each line, of bytes, has open quotes at its end, or may have."""
    if not dialect.doubles:
        return _compute.match_substring(lines, dialect.quote)
    single = _compute.replace_substring(lines, dialect.quote * 2, b"")
    bare = _compute.replace_substring_regex(single, dialect.quoted.encode(), rb"\1")
    return _compute.match_substring_regex(bare, dialect.opening.encode())


def any_open(files: Sequence[Path], dialect: Dialect) -> bool:
    """Whether files have such a line. Reads them here, which Spark needs longer to begin with. Raises OSError."""
    for file in files:
        with file.open("rb") as content:
            if content.read(len(BOM_UTF8)) != BOM_UTF8:  # which Spark does not hand on either
                content.seek(0)
            for lines in iter(partial(content.readlines, _CHUNK), []):
                quoted = pa.array([line for line in lines if dialect.quote in line], pa.binary())
                if _compute.any(are_open(quoted, dialect)).as_py():
                    return True
    return False


class JoinLines:
    """A function for ``mapInArrow``: (value, file) → (value, file, line, fault). A call belongs to one task."""

    def __init__(self, dialect: Dialect, columns: Sequence[str], fields: int | None = None) -> None:
        self._dialect = dialect
        self._fields = fields
        self._columns = ["value", *columns]

    def __call__(self, batches: Batches) -> Batches:
        """Join what belongs together. Every file has to be in one task, whole and in order."""
        joiner, file, read = Joiner(self._dialect, self._fields), "", 0
        for batch in batches:
            for values, its in _runs(batch):
                if its != file:
                    yield from self._batch(joiner.end(), file)
                    file, read = its, 0
                yield from self._run(joiner, values, file, read)
                read += len(values)
        yield from self._batch(joiner.end(), file)

    def _run(self, joiner: Joiner, values: pa.Array, file: str, read: int) -> Batches:
        suspects = _compute.indices_nonzero(are_open(values, self._dialect)).to_pylist()
        if not suspects and not joiner.is_open:
            lines = pa.array(range(read + 1, read + 1 + len(values)), pa.int64())
            yield self._arrays(values, lines, pa.nulls(len(values), pa.string()), file)
            return
        yield from self._batch(_records(joiner, values.to_pylist(), suspects, read), file)

    def _batch(self, records: Iterator[Record], file: str) -> Batches:
        found = list(records)
        if found:
            values = pa.array([record.text for record in found], pa.binary())
            lines = pa.array([record.line for record in found], pa.int64())
            faults = pa.array([record.fault and f"quote:{record.fault}" for record in found], pa.string())
            yield self._arrays(values, lines, faults, file)

    def _arrays(self, values: pa.Array, lines: pa.Array, faults: pa.Array, file: str) -> pa.RecordBatch:
        files = pa.array([file], pa.string()).take(pa.array([0] * len(values)))
        return pa.RecordBatch.from_arrays([values, files, lines, faults], names=self._columns)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[pa.Array, str]]:
    """The lines of a batch file by file."""
    values, files = batch.columns
    changes = _compute.indices_nonzero(_compute.not_equal(files[1:], files[:-1])).to_pylist()
    starts = [0, *(change + 1 for change in changes), len(values)]
    for start, end in pairwise(starts):
        if end > start:
            yield values[start:end], files[start].as_py()


def _records(joiner: Joiner, values: Sequence[bytes], suspects: Sequence[int], read: int) -> Iterator[Record]:
    """Only suspects can open what the next line goes on with."""
    suspicious = set(suspects)
    for place, text in enumerate(values):
        number = read + place + 1
        if joiner.is_open or place in suspicious:
            yield from joiner.line(number, text)
        else:
            yield Record(number, text)
