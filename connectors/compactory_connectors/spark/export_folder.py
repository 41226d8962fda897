"""The folder of an export, on any file system that Spark reaches: begun, filled, and made an export at last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from compactory.errors import CompactoryError, ConfigError, Unreachable

from .manifest import MANIFEST, ExportFile, Manifest, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ExportFolder"]

_BEGUN: Final = "_begun.json"


class ExportFolder:
    """A folder that is an export if and only if it has a manifest. Owned by one thread.

    A mark tells what was begun by an export that did not end, and may be cleared away, from what is somebody else's.
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

    def begin(self, *, overwrite: bool) -> None:
        """Have an empty folder with the mark.

        Raises ConfigError where there is an export already (unless ``overwrite``), or anything that is not ours.
        """
        present = self._names()
        if MANIFEST in present and not overwrite:
            raise ConfigError(f"{self.path} is an export already: give --overwrite, or another path for each export")
        if present and MANIFEST not in present and _BEGUN not in present:
            raise ConfigError(f"{self.path} is neither empty nor an export of ours: give another path")
        self._mark()
        self._delete(MANIFEST)  # from here on it is no export
        self.clear()

    def clear(self) -> None:
        """Delete everything but the mark."""
        for name in self._names() - {_BEGUN}:
            self._delete(name)

    def finish(self, manifest: Manifest) -> None:
        """Make it an export: the manifest appears whole, or not at all."""
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
        stream = self._called(self._files.open, place)
        try:
            content = bytes(self._called(self._io.toByteArray, stream))
        finally:
            stream.close()
        return read_manifest(content, f"{self.path}/{MANIFEST}")

    def files(self) -> tuple[ExportFile, ...]:
        """The files with rows, by name."""
        found = [
            (each.getPath().getName(), each.getLen()) for each in self._called(self._files.listStatus, self._folder)
        ]
        return tuple(ExportFile(name=name, bytes=size) for name, size in sorted(found) if name[0] not in "._")

    def _names(self) -> set[str]:
        if not self._called(self._files.exists, self._folder):
            return set()
        return {each.getPath().getName() for each in self._called(self._files.listStatus, self._folder)}

    def _mark(self) -> None:
        self._called(self._files.mkdirs, self._folder)
        self._write(self._path(self._folder, _BEGUN), b"{}\n")

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
            if kind in {"ConnectException", "UnknownHostException", "SocketTimeoutException", "NoRouteToHostException"}:
                raise Unreachable("file system", message) from error
            raise CompactoryError(message) from error
