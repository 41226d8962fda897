"""The tables of one topic's directories in one topic storage, with the checkpoint that goes with them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compactory.clock import boot, clock
from compactory.codec.decoding import json_schema
from compactory.directory import Directory, Index
from compactory.errors import BackendCorrupt
from compactory.ingest.rebuild_rules import Mark, dated
from compactory.options import StoreOptions
from compactory.records import Partition
from compactory.storage.backend import SaveSnapshot, TopicStorage
from compactory.storage.checkpoint import CaughtUp, Checkpoint
from compactory.table.batch import RecordRun
from compactory.table.table import Table

__all__ = ["TopicTables"]


class TopicTables:
    """The tables of one generation of a topic, one for each directory. Written by the reader's thread."""

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
        self.topic_id: str | None = None  # of the topic that was read, once it is served
        self.is_served = False  # True once views were answered from these tables
        self.has_logged_unusable = False  # True once the log says that one of the directories is not usable
        self.committed = storage.checkpoint  # the newest checkpoint
        self.last_record_epochs = dict(self.committed.last_record_epochs) if self.committed else {}  # see Checkpoint
        self.resumable = (
            self.committed is not None and self.committed.complete and self.committed.definition == self.definition
        )
        """True if the topic storage was opened with the complete topic, read under the same definitions."""
        for table in self.tables:
            table.has_good_record = self.resumable  # what is kept was served once
            if self.resumable and self.committed is not None:
                self._resume(table, self.committed)

    def _resume(self, table: Table, checkpoint: Checkpoint) -> None:
        table.resume()
        table.project_stored_entries()
        table.changes.publish(checkpoint.positions)
        table.changes.read_to |= {part: end for part, (end, _) in checkpoint.last_record_epochs.items()}
        if table.directory.keep_changes:
            table.changes.start_recording()

    def serve(
        self, topic_id: str | None, positions: Mapping[int, int], damaged: Callable[[BackendCorrupt], object]
    ) -> None:
        """Note that views are answered from these tables: read from the topic of this id, to these positions.

        Any thread calls ``damaged`` if a saved file turns out to be unreadable.
        """
        self.topic_id, self.is_served = topic_id, True
        self.publish_changes(positions)
        for table in self.tables:
            table.topic_id = topic_id
            table.start_lazy_load(damaged)
            if table.directory.keep_changes:
                table.changes.start_recording()

    def publish_changes(self, positions: Mapping[int, int]) -> None:
        """Show watches the applied changes, up to these positions (by partition); lookups see them already."""
        for table in self.tables:
            table.changes.publish(positions)

    def opened_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint that the topic storage was opened with, with marks by the current wall clock."""
        checkpoint = self.storage.checkpoint
        return checkpoint and dated(checkpoint, wall=time.time(), clock=clock(), boot=boot())

    def apply(self, run: RecordRun, *, loading: bool) -> None:
        """Apply a run to every directory of the topic."""
        for table in self.tables:
            table.apply(run, loading=loading)
            if not loading or self.resumable:  # else compaction may have removed what was behind the record
                table.changes.read_to[run.partition.partition] = run.next_offset
        if run.epoch is not None:
            self.last_record_epochs[run.partition.partition] = run.next_offset, run.epoch

    def forget_epochs_before(self, starts: Mapping[Partition, int]) -> None:
        """Forget the last records that the log does not have any more: the broker does not know their epochs."""
        self.last_record_epochs = {
            part: last
            for part, last in self.last_record_epochs.items()
            if last[0] >= starts[Partition(self.topic, part)]
        }

    def retry(self) -> None:
        """Apply every bad record once more."""
        for table in self.tables:
            for error in table.quarantine:
                table.retry(error)

    def spread_over(self, partitions: int) -> None:
        """Tell the tables over how many partitions their keys are spread."""
        for table in self.tables:
            table.multi_partition = partitions > 1

    def save_snapshots(self) -> list[SaveSnapshot]:
        """Return the tables as they are, to be saved in a file."""
        return [table.save_snapshot() for table in self.tables]

    def flush(self) -> None:
        """Bring the committed changes to disk, where the backend keeps them there."""
        self.storage.flush()
        if self.committed is not None:
            self.storage.save(self.committed, self.save_snapshots)

    def commit(
        self,
        topic_id: str | None,
        cluster_id: str | None,
        positions: dict[int, int],
        marks: Mapping[int, Mark],
        *,
        complete: bool,
    ) -> None:
        """Make the applied changes visible, together with a checkpoint: the positions and marks, by partition."""
        since_epoch = time.time() - clock()
        self.committed = Checkpoint(
            topic_id=topic_id,
            cluster_id=cluster_id,
            definition=self.definition,
            positions=positions,
            last_record_epochs=dict(self.last_record_epochs),
            caught_up={
                number: CaughtUp(at=mark.at + since_epoch, end=mark.end, clock=mark.at, boot=boot())
                for number, mark in marks.items()
            },
            complete=complete or self.resumable,
        )
        self.commit_again()

    def commit_again(self) -> None:
        """Make changes visible that no record made. The committed checkpoint stays true."""
        if self.committed is None:
            return
        self.storage.commit(self.committed)
        for table in self.tables:
            table.version = object()


def definition(directories: Sequence[Directory[Any]], *, validate: bool) -> str:
    """Return a fingerprint of all that decides which entries records become. A changed one demands a rebuild.

    ``decode`` counts by how values are checked: as objects, not at all, by the schema of a type, or by a callable. All
    callables count as equal, because they have no identity that outlives the process; so do callable envelopes.
    """
    definitions = sorted(
        repr((d.name, d.key, d.active, d.envelope_name, validate and _check(d), sorted(map(_index, d.indexes))))
        for d in directories
    )
    return hashlib.sha256("\n".join(definitions).encode()).hexdigest()[:32]


def _check(directory: Directory[Any]) -> str:
    if directory.decode is bytes:
        return "none"
    return "objects" if directory.decode is dict else f"callable{json_schema(directory.decode)}"


def _index(index: Index) -> tuple[str, tuple[str, ...], bool]:
    return index.name, index.fields, index.unique
