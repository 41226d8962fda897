"""Lines of CSV files in which quotes are open at the end, or may be: what the next line holds may belong to them."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from .csv_records import Dialect

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["any_open", "are_open", "is_open", "unquoted"]

_compute: Any = pyarrow.compute  # makes its functions when it is imported, which type checkers do not see
_CHUNK: Final = 16 << 20
_NEWLINE: Final = 10


def are_open(lines: pa.Array, dialect: Dialect) -> pa.Array:
    """Whether each line, of bytes, has open quotes at its end, or may have."""
    if not dialect.doubles:
        return _compute.match_substring(lines, dialect.quote)
    single = _compute.replace_substring(lines, dialect.quote * 2, b"")
    bare = _compute.replace_substring_regex(single, dialect.quoted.encode(), rb"\1")
    return _compute.match_substring_regex(bare, dialect.opening.encode())


def is_open(text: Column, dialect: Dialect) -> Column:
    """The same of a text, for Spark."""
    from pyspark.sql import functions as sf

    quote = dialect.quote.decode()
    has_quote = sf.contains(text, sf.lit(quote))
    return has_quote & unquoted(text, dialect).rlike(dialect.opening) if dialect.doubles else has_quote


def unquoted(text: Column, dialect: Dialect) -> Column:
    """A record without what is in quotes, for Spark; with a quote left where one is open or none can tell."""
    from pyspark.sql import functions as sf

    if not dialect.doubles:
        return text
    single = sf.replace(text, sf.lit(dialect.quote.decode() * 2), sf.lit(""))
    return sf.regexp_replace(single, dialect.quoted, "$1")


def any_open(files: Sequence[Path], dialect: Dialect) -> bool:
    """Whether files have such a line. Reads them here, which Spark needs longer to begin with. Raises OSError."""
    for lines in (lines for file in files for lines in _lines(file)):
        quoted = lines.filter(_compute.match_substring(lines, dialect.quote))
        if _compute.any(are_open(quoted, dialect)).as_py():
            return True
    return False


def _lines(file: Path) -> Iterator[pa.Array]:
    with file.open("rb") as content:
        rest = content.read(len(BOM_UTF8)).removeprefix(BOM_UTF8)  # which Spark does not hand on either
        for chunk in iter(partial(content.read, _CHUNK), b""):
            text = rest + chunk
            end = text.rfind(b"\n") + 1
            rest = text[end:]
            yield _divided(text[:end])
        yield _divided(rest + b"\n")


def _divided(text: bytes) -> pa.Array:
    """The lines of a text that ends with a newline, with theirs."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE).astype(np.int32) + 1
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
