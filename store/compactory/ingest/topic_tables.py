"""The tables of one topic's directories in one topic storage, and how far they are."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compactory.clock import boot, clock
from compactory.codec.decoding import json_schema
from compactory.directory import Directory, Index
from compactory.errors import BackendCorrupt
from compactory.ingest.resumption import dated
from compactory.options import StoreOptions
from compactory.records import Partition
from compactory.storage.backend import Cut, TopicStorage
from compactory.storage.checkpoint import Checkpoint
from compactory.table.batch import RecordRun
from compactory.table.table import Table

__all__ = ["TopicTables"]


class TopicTables:
    """One generation of a topic's tables. Written by the reader's thread."""

    def __init__(
        self, topic: str, directories: Sequence[Directory[Any]], storage: TopicStorage, options: StoreOptions
    ) -> None:
        validate, strict = options.validate == "apply", options.on_bad_record == "fail"
        self.topic = topic
        self.storage = storage
        self.tables = tuple(
            Table(directory, storage.directory_storage(directory.name), validate=validate, strict=strict)
            for directory in directories
        )
        self.definition = definition(directories, validate=validate)
        for table in self.tables:
            table.usable = self.resumable  # what is kept was served once
            if self.resumable and storage.checkpoint is not None:
                table.resume()
                table.project_stored_entries()
                table.changes.publish(storage.checkpoint.positions)
                table.changes.read_to |= {part: end for part, (end, _) in storage.checkpoint.last_record_epochs.items()}
                if table.directory.keep_changes:
                    table.changes.start_recording()
        self.topic_id: str | None = None  # of the topic that was read, once it is served
        self.served = False  # whether views have been answered from it
        self.logged_unusable = False  # whether the log says already that one of its directories is not usable
        kept = storage.checkpoint
        self.last_record_epochs = dict(kept.last_record_epochs) if kept else {}  # see Checkpoint
        self.committed = storage.checkpoint  # the newest that was

    def serve(
        self, topic_id: str | None, positions: Mapping[int, int], damaged: Callable[[BackendCorrupt], object]
    ) -> None:
        """Answer views from it from now on.

        ``topic_id`` is that of the topic that was read, to these positions. ``damaged`` is called, by any thread, where
        it turns out that a saved file can't be read.
        """
        self.topic_id, self.served = topic_id, True
        self.publish_changes(positions)
        for table in self.tables:
            table.topic_id = topic_id
            table.start_filling(damaged)
            if table.directory.keep_changes:
                table.changes.start_recording()

    def publish_changes(self, positions: Mapping[int, int]) -> None:
        """Show watches what was applied, up to these positions (by partition); lookups see it already."""
        for table in self.tables:
            table.changes.publish(positions)

    @property
    def resumable(self) -> bool:
        """Whether the topic storage holds the topic complete, read under the same definitions."""
        checkpoint = self.storage.checkpoint
        return checkpoint is not None and checkpoint.complete and checkpoint.definition == self.definition

    def kept(self) -> Checkpoint | None:
        """Return how far the topic storage was read when it was opened, with marks as the clock of now has them."""
        found = self.storage.checkpoint
        return found and dated(found, wall=time.time(), clock=clock(), boot=boot())

    def apply(self, run: RecordRun, *, loading: bool) -> None:
        """Apply a run to every directory of the topic."""
        for table in self.tables:
            table.apply(run, loading=loading)
            if not loading or self.resumable:  # else compaction may have removed what was behind the record
                table.changes.read_to[run.partition.partition] = run.next_offset
        if run.epoch is not None:
            self.last_record_epochs[run.partition.partition] = run.next_offset, run.epoch

    def forget_epochs_before(self, starts: Mapping[Partition, int]) -> None:
        """Forget the last records that the log does not have any more: the broker knows nothing of their epochs."""
        kept = self.last_record_epochs.items()
        self.last_record_epochs = {part: last for part, last in kept if last[0] >= starts[Partition(self.topic, part)]}

    def retry(self) -> None:
        """Apply every bad record once more."""
        for table in self.tables:
            for error in table.quarantine:
                table.retry(error)

    def spread_over(self, partitions: int) -> None:
        """Tell the tables over how many partitions their keys are spread."""
        for table in self.tables:
            table.multi_partition = partitions > 1

    def cuts(self) -> list[Cut]:
        """Return the tables as they are, to be saved in a file."""
        return [table.cut() for table in self.tables]

    def flush(self) -> None:
        """Bring to disk what was committed, where the backend keeps it there."""
        self.storage.flush()
        if self.committed is not None:
            self.storage.save(self.committed, self.cuts)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Make what was applied visible, together with how far it goes."""
        self.committed = checkpoint
        self.commit_again()

    def commit_again(self) -> None:
        """Make what was changed without reading on visible; what was committed of positions stays true."""
        if self.committed is None:
            return
        self.storage.commit(self.committed)
        for table in self.tables:
            table.version = object()


def definition(directories: Sequence[Directory[Any]], *, validate: bool) -> str:
    """Return a fingerprint of what is made of a topic's records: with another one they have to be read anew.

    ``decode`` counts by how values are checked: as objects, not at all, by the schema of a type, or by a callable,
    whichever it is: callables have no identity that outlives the process. So does a callable that is the envelope.
    """
    said = sorted(
        repr((d.name, d.key, d.active, d.envelope_name, validate and _check(d), sorted(map(_index, d.indexes))))
        for d in directories
    )
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:32]


def _check(directory: Directory[Any]) -> str:
    if directory.decode is bytes:
        return "none"
    return "objects" if directory.decode is dict else f"callable{json_schema(directory.decode)}"


def _index(index: Index) -> tuple[str, tuple[str, ...], bool]:
    return index.name, index.fields, index.unique
