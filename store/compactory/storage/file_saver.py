"""Saves tables in memory to a file, from a snapshot, in a thread. Readers do not wait for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from zlib import crc32

from compactory.codec.packed_record import ORIGIN_SIZE
from compactory.errors import BackendFailed, StoreClosed
from compactory.storage.backend import SaveSnapshot
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.saved_file import HashIndex, Layout, SavedFile, SavedFileWriter, replace_file
from compactory.threads import start_thread

__all__ = [
    "SMALL_PARTS",
    "FileSaver",
    "file_name",
    "read_saved_file",
]

log = logging.getLogger("compactory.store")

SMALL_PARTS = ("tombstones", "quarantine")  # mappings that are saved whole
_BUCKET_SIZE = 64  # records: a lookup reads one, 20 µs, until the dict has it
_UNCHANGED_FACTOR = 12  # times as long a file holds of a topic in which nothing happens
_CLOSE_TIMEOUT = 10.0  # seconds that closing waits for the file that is being written
_ORIGIN = slice(-ORIGIN_SIZE, None)


class FileSaver:
    """Writes the file of one topic again and again; ``saved`` is the file that the store resumed from.

    Belongs to the reader thread; `begin` starts the thread that writes.
    """

    def __init__(self, path: Path, topic: str, every: float, saved: SavedFile | None) -> None:
        self._path = path
        self._topic = topic
        self._every = every
        self._thread: Thread | None = None
        self._saved = None if saved is None else saved.checkpoint  # the newest that is in the file, or was to be

    def begin(self, checkpoint: Checkpoint, take_snapshots: Callable[[], Sequence[SaveSnapshot]]) -> None:
        """Write the file if the tables are complete and the last file is old; any process may have written that one.

        Where nothing has changed it says when all was last caught up, for which an hour is near enough.
        """
        if not checkpoint.complete or (self._thread is not None and self._thread.is_alive()):
            return
        if self._saved is not None:
            unchanged = checkpoint.positions == self._saved.positions
            with suppress(OSError):  # there is none
                if (
                    0
                    <= time.time() - self._path.stat().st_mtime
                    < self._every * (_UNCHANGED_FACTOR if unchanged else 1)
                ):
                    return
        self._saved = checkpoint
        self._thread = start_thread("save", self._save, checkpoint, take_snapshots())

    def finish(self) -> None:
        """Wait up to ten seconds for the file that is being written."""
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT)

    def _save(self, checkpoint: Checkpoint, snapshots: Sequence[SaveSnapshot]) -> None:
        began = time.monotonic()
        try:
            save(self._path, self._topic, checkpoint, snapshots)
        except StoreClosed:
            log.info("%s was not written: the store was closed meanwhile", self._path)
        except Exception as failure:  # noqa: BLE001 (a store goes on without it)
            why = failure.strerror if isinstance(failure, OSError) else type(failure).__name__  # never a value
            log.error("%s was not written, tried again in %g s: %s", self._path, self._every, why)
        else:
            log.debug("%s was written in %.1f s", self._path, time.monotonic() - began)


def save(path: Path, topic: str, checkpoint: Checkpoint, snapshots: Sequence[SaveSnapshot]) -> bool:
    """Write the file of a topic, which replaces the former one when it is complete; False while another one writes."""
    try:
        with replace_file(path) as file:
            if file is not None:
                writer = SavedFileWriter(file)
                directories = {snapshot.directory: _write_directory(writer, snapshot) for snapshot in snapshots}
                writer.finish(topic, checkpoint, directories)
            return file is not None
    finally:
        for snapshot in snapshots:
            snapshot.records.close()


def file_name(topic: str) -> str:
    """Return the name of a topic's file; its checksum keeps names different that some file systems treat as equal."""
    return f"{topic[:200]}-{crc32(topic.encode()):08x}.saved"


def read_saved_file(folder: Path, topic: str) -> SavedFile | None:
    """Return the saved file of a topic in a folder; None if there is none, or it can't be used.

    Raises BackendFailed where the folder can't be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise BackendFailed(f"{folder}: {failure.strerror}", str(folder)) from failure
    path = folder / file_name(topic)
    try:
        return SavedFile(path, topic)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as failure:
        log.warning("%s can't be used, the topic is read from its beginning: %s", path, failure)
        return None


def _write_directory(writer: SavedFileWriter, snapshot: SaveSnapshot) -> Layout:
    """Write the buckets and hash indexes of one directory; return where they are.

    Bucket 0 has the records that share a lookup key: it is read whole, so its keys are not hashed.
    """
    records = snapshot.records.entries
    topic_keys = list(snapshot.records.all_keys())
    shared_keys = [key for key in topic_keys if records[key][_ORIGIN] in snapshot.shared] if snapshot.shared else []
    excluded = set(shared_keys)
    own_keys = [key for key in topic_keys if key not in excluded] if excluded else topic_keys
    hash_rows = len(topic_keys) // _BUCKET_SIZE + 1
    by_topic_key, by_lookup_key = HashIndex(hash_rows), HashIndex(hash_rows)
    own_buckets = (own_keys[start : start + _BUCKET_SIZE] for start in range(0, len(own_keys), _BUCKET_SIZE))
    places = []
    for number, keys in enumerate((shared_keys, *own_buckets)):
        bucket = snapshot.columns(keys, [records[key] for key in keys])
        places.append(writer.bucket(bucket, keyed=snapshot.keyed))
        if number > 0:
            by_topic_key.add(keys, number)
            if snapshot.keyed:
                by_lookup_key.add(bucket.lookup_keys, number)
        time.sleep(0)  # lets readers run
    return Layout(
        count=len(own_keys),
        buckets=len(places),
        indexes=snapshot.indexes,
        places=writer.places(places),
        rows=hash_rows,
        keys=writer.index(by_topic_key),
        names=writer.index(by_lookup_key) if snapshot.keyed else None,
        parts={name: writer.part(mapping) for name, mapping in snapshot.parts.items()},
    )
