"""A thread of its own saves tables in memory to a file. It starts from a cut, and readers do not wait for it."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any
from zlib import crc32

from compactory.cleanup import start_thread
from compactory.codec.packed_record import ORIGIN_SIZE
from compactory.errors import BackendFailed, CompactoryError, ConfigError, StoreClosed
from compactory.storage.backend import Cut
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.saved_file import HashIndex, Layout, SavedFile, SavedFileWriter, replaceable, written

__all__ = ["SMALL_PARTS", "Saving", "fetched", "file_name", "kept", "stored", "target_of"]

log = logging.getLogger("compactory.store")

SMALL_PARTS = ("tombstones", "quarantine")  # mappings that are saved whole
_BUCKET = 64  # records: a lookup reads one, 20 µs, until the dict has it
_QUIET = 12  # times as long a file holds of a topic in which nothing happens
_PATIENCE = 10.0  # seconds that closing waits for the file that is being written
_METADATA = slice(-ORIGIN_SIZE, None)


class Saving:
    """Writes the file of one topic again and again; ``saved`` is the one that is gone on with.

    Belongs to the reader's thread, but for the thread that writes.
    """

    def __init__(self, path: Path, topic: str, every: float, saved: SavedFile | None) -> None:
        self._path = path
        self._topic = topic
        self._every = every
        self._thread: Thread | None = None
        self._saved = None if saved is None else saved.checkpoint  # the newest that is in the file, or was to be

    def begin(self, checkpoint: Checkpoint, cuts: Callable[[], Sequence[Cut]]) -> None:
        """Write the file if the tables are complete and the last file is old; any process may have written that one.

        Where nothing has changed it says when all was last caught up, for which an hour is near enough.
        """
        if not checkpoint.complete or (self._thread is not None and self._thread.is_alive()):
            return
        if self._saved is not None:
            unchanged = checkpoint.positions == self._saved.positions
            with suppress(OSError):  # there is none
                if 0 <= time.time() - self._path.stat().st_mtime < self._every * (_QUIET if unchanged else 1):
                    return
        self._saved = checkpoint
        self._thread = start_thread("save", self._save, checkpoint, cuts())

    def finish(self) -> None:
        """Wait for the file that is being written; after ten seconds it is given up."""
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _save(self, checkpoint: Checkpoint, cuts: Sequence[Cut]) -> None:
        began = time.monotonic()
        try:
            save(self._path, self._topic, checkpoint, cuts)
        except StoreClosed:
            log.info("%s was not written: the store was closed meanwhile", self._path)
        except Exception as failure:  # noqa: BLE001 (a store goes on without it)
            why = failure.strerror if isinstance(failure, OSError) else type(failure).__name__  # never a value
            log.error("%s was not written, tried again in %g s: %s", self._path, self._every, why)
        else:
            log.debug("%s was written in %.1f s", self._path, time.monotonic() - began)


def save(path: Path, topic: str, checkpoint: Checkpoint, cuts: Sequence[Cut]) -> bool:
    """Write the file of a topic, which replaces the former one when it is complete; False while another one writes."""
    try:
        with written(path) as file:
            if file is not None:
                writer = SavedFileWriter(file)
                directories = {cut.directory: _directory(writer, cut) for cut in cuts}
                writer.finish(topic, checkpoint, directories)
            return file is not None
    finally:
        for cut in cuts:
            cut.records.close()


def file_name(topic: str) -> str:
    """Return the name of a topic's file; its checksum tells apart names that some file systems take for equal."""
    return f"{topic[:200]}-{crc32(topic.encode()):08x}.saved"


def kept(folder: Path, topic: str) -> SavedFile | None:
    """Return what was saved of a topic in a folder; None where nothing was, or it can't be used.

    Raises BackendFailed where the folder can't be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise BackendFailed(f"{folder}: {failure.strerror}", str(folder)) from failure
    return _read(folder / file_name(topic), topic)


def fetched(address: str, topic: str) -> SavedFile | None:
    """Return a topic's file at a path or URL (see `_place_of`); None where it can't be used."""
    place = _place_of(address, topic)
    if "://" not in place:
        return _read(Path(place), topic)
    system, path = _file_system(place)
    try:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            system.get_file(path, str(copy))
            return _read(copy, topic)  # the mapping outlives the name
    except Exception as failure:  # noqa: BLE001 (any of a dozen libraries')
        log.warning("nothing came from %s, the topic is read from its beginning: %s", place, type(failure).__name__)
        return None


def stored(address: str, topic: str, checkpoint: Checkpoint, cuts: Sequence[Cut]) -> str:
    """Write a topic's file to a path or URL; return which. Raises BackendFailed, ConfigError."""
    place = target_of(address, topic)
    try:
        if "://" not in place:
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            if not save(Path(place), topic, checkpoint, cuts):
                raise BackendFailed(f"{place} is being written just now, by another store or process; try again", place)
            return place
        system, path = _file_system(place)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            save(copy, topic, checkpoint, cuts)
            system.put_file(str(copy), path)
    except CompactoryError:
        raise
    except Exception as failure:
        raise BackendFailed(f"{place} can't be written: {type(failure).__name__}: {failure}", place) from failure
    return place


def target_of(address: str, topic: str) -> str:
    """Return where a topic's file may be written (see `_place_of`). Raises ConfigError."""
    if not address:
        raise ConfigError("the file's address is empty; name a file or URL")
    place = _place_of(address, topic)
    if "://" not in place and not replaceable(Path(place)):
        raise ConfigError(f"{place} is no file that a store saved, and is not replaced; name another one, or remove it")
    return place


def _place_of(address: str, topic: str) -> str:
    """Return where a topic's file is: ``address`` itself, or in it where it ends with / or is a folder."""
    address = address.removeprefix("file://")
    if address.endswith("/") or Path(address).is_dir():
        return f"{address.rstrip('/')}/{file_name(topic)}"
    return address


def _file_system(place: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(place)
    except (ImportError, ValueError) as failure:
        raise ConfigError(f"{place} needs fsspec and its package for that protocol: {failure}") from failure
    return system, path


def _read(path: Path, topic: str) -> SavedFile | None:
    try:
        return SavedFile(path, topic)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as failure:
        log.warning("%s can't be used, the topic is read from its beginning: %s", path, failure)
        return None


def _directory(writer: SavedFileWriter, cut: Cut) -> Layout:
    """Write the records of one directory; return its part of the description."""
    records = cut.records.entries
    names = list(cut.records.all_keys())
    shared = [key for key in names if records[key][_METADATA] in cut.shared] if cut.shared else []
    apart = set(shared)
    alone = [key for key in names if key not in apart] if apart else names
    rows = len(names) // _BUCKET + 1
    by_key, by_name = HashIndex(rows), HashIndex(rows)
    places = []
    for number, keys in enumerate((shared, *(alone[at : at + _BUCKET] for at in range(0, len(alone), _BUCKET)))):
        bucket = cut.columns(keys, [records[key] for key in keys])
        places.append(writer.bucket(bucket, keyed=cut.keyed))
        if number:
            by_key.add(keys, number)
            if cut.keyed:
                by_name.add(bucket.names, number)
        time.sleep(0)  # lets readers run
    return Layout(
        count=len(alone),
        buckets=len(places),
        indexes=cut.indexes,
        places=writer.places(places),
        rows=rows,
        keys=writer.index(by_key),
        names=writer.index(by_name) if cut.keyed else None,
        parts={name: writer.part(mapping) for name, mapping in cut.parts.items()},
    )
