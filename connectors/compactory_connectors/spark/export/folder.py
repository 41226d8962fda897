"""The folder of an export, on any file system that Spark reaches: begun, filled, made an export at last, and read.

Each format has what it needs so that nothing is lost on the way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, StructType

from compactory.errors import CompactoryError, ConfigError

from ..file_system import file_system, java, names_in, qualified, read_bytes
from ..identifier import quoted
from .manifest import MANIFEST, ExportFile, Manifest, read_manifest
from .rows import Shape

__all__ = ["ExportFolder", "flattened"]

_BEGUN: Final = "_begun.json"
_UUID: Final = 36  # characters, in the names of the files that one job writes: part-00000-UUID-c000.snappy.parquet

_TIMES: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_CSV: Final = {
    "header": True,
    "quote": '"',
    "escape": '"',
    "encoding": "UTF-8",
    "ignoreLeadingWhiteSpace": False,
    "ignoreTrailingWhiteSpace": False,
    "nullValue": "",
    "emptyValue": '""',  # nothing is null, "" an empty text
    **_TIMES,
}
_WRITE: Final[dict[str, dict[str, Any]]] = {
    "csv": {**_CSV, "lineSep": "\n"},
    "json": {"ignoreNullFields": False, **_TIMES},
}
_READ: Final[dict[str, dict[str, Any]]] = {
    "csv": {
        **_CSV,
        "multiLine": True,
        "maxCharsPerColumn": -1,
        "mode": "FAILFAST",
        "nullValue": "\0",
        "emptyValue": "",  # null becomes the one, "" the other: they must not be equal
    },
    "json": {"mode": "FAILFAST", **_TIMES},
}


class ExportFolder:
    """A folder that is an export if and only if it has a manifest. Owned by one thread.

    A mark tells what was begun by an export that did not end, and may be cleared away, from what is somebody else's;
    and whose the folder is, where a second export begins in it before the first one has ended.
    """

    def __init__(self, spark: SparkSession, path: str | Path) -> None:
        if not str(path):
            raise ConfigError("the path of an export is empty: name a folder")
        self.path = str(path).rstrip("/") or "/"
        self._spark = spark
        self._files, self._folder = file_system(spark, self.path)
        self._run = uuid4().hex

    @property
    def place(self) -> str:
        """Where it is, however ``path`` spells it."""
        return qualified(self._spark, self.path)

    def begin(self, *, overwrite: bool) -> None:
        """Have an empty folder with the mark.

        Raises ConfigError where there is an export already (unless ``overwrite``), or anything that is not ours.
        """
        present = names_in(self._spark, self.path)
        if present and self._files.getFileStatus(self._folder).isFile():
            raise ConfigError(f"{self.path} is a file: name a folder")
        if MANIFEST in present and not overwrite:
            raise ConfigError(f"{self.path} is an export already: give --overwrite, or another path for each export")
        others = sorted(name for name in present if not _ours(name))
        if others or (present and MANIFEST not in present and _BEGUN not in present):
            what = f" (it has {others[0]})" if others else ""
            raise ConfigError(f"{self.path} is neither empty nor an export of ours alone{what}: give another path")
        self._write(_BEGUN, self._run.encode())  # with the folder, where there is none
        self._delete(MANIFEST)  # from here on it is no export
        self.clear()

    def clear(self) -> None:
        """Delete everything of exports but the mark."""
        for name in names_in(self._spark, self.path) - {_BEGUN}:
            if _ours(name):
                self._delete(name)

    def write(self, rows: DataFrame, form: str) -> None:
        """Add files of this format with these rows."""
        flattened(rows, form).write.format(form).options(**_WRITE.get(form, {})).mode("append").save(self.path)

    def read(self, manifest: Manifest) -> DataFrame:
        """The rows of those files that the manifest names, with the columns as they were written."""
        form = manifest.format
        files = [f"{self.path.rstrip('/')}/{each.name}" for each in manifest.files]
        written = flattened(self._spark.createDataFrame([], from_arrow_schema(Shape.of(manifest).schema)), form)
        return self._spark.read.format(form).options(**_READ.get(form, {})).schema(written.schema).load(files)

    def finish(self, manifest: Manifest) -> None:
        """Make it an export: the manifest appears whole, or not at all.

        Raises CompactoryError where another export has begun in it meanwhile, or has left files there.
        """
        jobs = {file.name.split("-", 2)[-1][:_UUID] for file in manifest.files}
        if len(jobs) > 1 or self._read(_BEGUN) != self._run.encode():
            raise CompactoryError(f"{self.path}: another export writes into it as well; run one after the other")
        beside = f"{MANIFEST}.new"
        self._write(beside, manifest.to_json())
        if not self._files.rename(self._at(beside), self._at(MANIFEST)):
            raise CompactoryError(f"{self.path}: {MANIFEST} could not be written; export again")
        self._delete(_BEGUN)

    def manifest(self) -> Manifest:
        """The description of the export. Raises ConfigError where there is none."""
        if not self._files.exists(self._at(MANIFEST)):
            raise ConfigError(f"{self.path} is no export: it has no {MANIFEST} (an export that was cut off has none)")
        return read_manifest(self._read(MANIFEST), f"{self.path}/{MANIFEST}")

    def files(self) -> tuple[ExportFile, ...]:
        """The files with rows, by name."""
        found = sorted((each.getPath().getName(), each.getLen()) for each in self._files.listStatus(self._folder))
        return tuple(ExportFile(name=name, bytes=size) for name, size in found if name[0] not in "._")

    def _at(self, name: str) -> Any:
        return java(self._spark).org.apache.hadoop.fs.Path(self._folder, name)

    def _read(self, name: str) -> bytes:
        return read_bytes(self._spark, self._files.open(self._at(name)))

    def _write(self, name: str, content: bytes) -> None:
        stream = self._files.create(self._at(name), True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def _delete(self, name: str) -> None:
        self._files.delete(self._at(name), True)


def _ours(name: str) -> bool:
    """Whether it is the name of something that an export, or Spark for it, has put there."""
    return name.startswith(("part-", "_")) or (name.startswith(".") and name.endswith(".crc"))


def flattened(frame: DataFrame, form: str) -> DataFrame:
    """The columns as this format has them: of text formats binary ones as text, in CSV objects and lists as JSON."""
    if form not in _WRITE:
        return frame
    columns = []
    for item in frame.schema.fields:
        column = f.col(quoted(item.name))
        if isinstance(item.dataType, BinaryType):
            column = f.try_validate_utf8(column.cast("string"))  # null where it is none: such a record is bad anyway
        elif form == "csv" and isinstance(item.dataType, StructType | ArrayType):
            column = f.to_json(column)
        columns.append(column.alias(item.name))
    return frame.select(columns)
