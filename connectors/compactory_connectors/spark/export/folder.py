"""The folder of an export, on any file system that Spark reaches: begun, filled, and made an export at last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from compactory.errors import CompactoryError, ConfigError, Unreachable

from ..failures import AWAY
from .manifest import MANIFEST, ExportFile, Manifest, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ExportFolder"]

_BEGUN: Final = "_begun.json"
_UUID: Final = 36  # characters, in the names of the files that one job writes: part-00000-UUID-c000.snappy.parquet


class ExportFolder:
    """A folder that is an export if and only if it has a manifest. Owned by one thread.

    A mark tells what was begun by an export that did not end, and may be cleared away, from what is somebody else's;
    and whose the folder is, where a second export begins in it before the first one has ended.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        java: Any = spark._jvm  # noqa: SLF001  (PySpark has no other way to Hadoop's file systems)
        context: Any = spark._jsc  # noqa: SLF001
        if java is None or context is None:
            raise CompactoryError("exports need a Spark session of this process, not Spark Connect")
        self.path = path.rstrip("/") or "/"
        self._path: Any = java.org.apache.hadoop.fs.Path
        self._io: Any = java.org.apache.commons.io.IOUtils
        self._folder = self._path(self.path)
        self._files = self._called(self._folder.getFileSystem, context.hadoopConfiguration())
        self._run = uuid4().hex

    @property
    def place(self) -> str:
        """Where it is, however ``path`` spells it."""
        return str(self._called(self._files.makeQualified, self._folder).toString())

    def begin(self, *, overwrite: bool) -> None:
        """Have an empty folder with the mark.

        Raises ConfigError where there is an export already (unless ``overwrite``), or anything that is not ours.
        """
        present = self._names()
        if MANIFEST in present and not overwrite:
            raise ConfigError(f"{self.path} is an export already: give --overwrite, or another path for each export")
        others = sorted(name for name in present if not _ours(name))
        if others or (present and MANIFEST not in present and _BEGUN not in present):
            what = f" (it has {others[0]})" if others else ""
            raise ConfigError(f"{self.path} is neither empty nor an export of ours alone{what}: give another path")
        self._mark()
        self._delete(MANIFEST)  # from here on it is no export
        self.clear()

    def clear(self) -> None:
        """Delete everything of exports but the mark."""
        for name in self._names() - {_BEGUN}:
            if _ours(name):
                self._delete(name)

    def finish(self, manifest: Manifest) -> None:
        """Make it an export: the manifest appears whole, or not at all.

        Raises CompactoryError where another export has begun in it meanwhile, or has left files there.
        """
        jobs = {file.name.split("-", 2)[-1][:_UUID] for file in manifest.files}
        if len(jobs) > 1 or self._read(_BEGUN) != self._run.encode():
            raise CompactoryError(f"{self.path}: another export writes into it as well; run one after the other")
        beside = self._path(self._folder, f"{MANIFEST}.new")
        self._write(beside, manifest.to_json())
        if not self._called(self._files.rename, beside, self._path(self._folder, MANIFEST)):
            raise CompactoryError(f"{self.path}: {MANIFEST} could not be written; export again")
        self._delete(_BEGUN)

    def manifest(self) -> Manifest:
        """What the export is. Raises ConfigError where it is none."""
        place = self._path(self._folder, MANIFEST)
        if not self._called(self._files.exists, place):
            raise ConfigError(f"{self.path} is no export: it has no {MANIFEST} (an export that was cut off has none)")
        return read_manifest(self._read(MANIFEST), f"{self.path}/{MANIFEST}")

    def files(self) -> tuple[ExportFile, ...]:
        """The files with rows, by name."""
        found = [
            (each.getPath().getName(), each.getLen()) for each in self._called(self._files.listStatus, self._folder)
        ]
        return tuple(ExportFile(name=name, bytes=size) for name, size in sorted(found) if name[0] not in "._")

    def _read(self, name: str) -> bytes:
        stream = self._called(self._files.open, self._path(self._folder, name))
        try:
            return bytes(self._called(self._io.toByteArray, stream))
        finally:
            stream.close()

    def _names(self) -> set[str]:
        if not self._called(self._files.exists, self._folder):
            return set()
        return {each.getPath().getName() for each in self._called(self._files.listStatus, self._folder)}

    def _mark(self) -> None:
        self._called(self._files.mkdirs, self._folder)
        self._write(self._path(self._folder, _BEGUN), self._run.encode())

    def _write(self, place: Any, content: bytes) -> None:
        stream = self._called(self._files.create, place, True)
        try:
            self._called(stream.write, bytearray(content))
        finally:
            stream.close()

    def _delete(self, name: str) -> None:
        self._called(self._files.delete, self._path(self._folder, name), True)

    def _called(self, method: Any, *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Py4JJavaError as error:
            reason = error.java_exception
            kind, text = reason.getClass().getSimpleName(), str(reason.getMessage()).partition("\n")[0]
            message = f"{self.path}: {kind}: {text}"
            if kind in AWAY:
                raise Unreachable("file system", message) from error
            raise CompactoryError(message) from error


def _ours(name: str) -> bool:
    """Whether it is the name of something that an export, or Spark for it, has put there."""
    return name.startswith(("part-", "_")) or (name.startswith(".") and name.endswith(".crc"))
