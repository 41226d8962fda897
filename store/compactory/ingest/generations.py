"""The topic tables of a store: those that are read into, and those that views are answered from."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from compactory.directory import Directory
from compactory.errors import BackendCorrupt
from compactory.ingest.progress import Progress
from compactory.ingest.topic_tables import TopicTables
from compactory.options import StoreOptions
from compactory.read.served import Served
from compactory.records import StoreState
from compactory.storage.backend import Backend, TopicStorage
from compactory.table.table import Table

__all__ = ["Generations"]

log = logging.getLogger("compactory.store")


class Generations:
    """The current generation of each topic and, while that is read, the former one that is still served.

    ``reading``  topic → the tables that it is read into
    ``serving``  topic → the tables that views are answered from; absent before the topic is served
    ``served``   what the view of each directory reads

    The thread that starts the store opens them; then the reader's thread alone changes them. Any thread may look at
    them.
    """

    def __init__(
        self,
        directories: Mapping[str, Sequence[Directory[Any]]],
        backend: Backend,
        options: StoreOptions,
        served: Mapping[str, Served],
    ) -> None:
        self.reading: dict[str, TopicTables] = {}
        self.serving: dict[str, TopicTables] = {}
        self.served = served
        self._directories = directories
        self._backend = backend
        self._options = options

    def open(self) -> None:
        """Open the tables that the backend has of each topic."""
        for topic in self._directories:
            self.reading[topic] = self._open(topic)

    def _open(self, topic: str) -> TopicTables:
        storage = self._backend.open(topic)
        try:
            return self._new_tables(topic, storage)
        except BackendCorrupt as damage:
            # as text: handlers may keep a log record, and the frames of the error hold iterators of the storage
            log.warning("topic %s: what was kept of it is not used: %s", topic, str(damage))
        storage.close()  # not before the error is gone: its iterators would keep the storage open
        return self._new_tables(topic, self._backend.open(topic))  # which sets aside what is marked as damaged now

    def _new_tables(self, topic: str, storage: TopicStorage) -> TopicTables:
        return TopicTables(topic, self._directories[topic], storage, self._options)

    def begin(self, topic: str) -> None:
        """Read a topic into new, empty tables from now on. Views still read the former ones, if they were served."""
        former = self.reading[topic]
        self.reading[topic] = self._new_tables(topic, self._backend.fresh(topic))
        if not former.is_served:
            former.storage.close()

    def promote(self, tables: TopicTables) -> None:
        """Mark these tables as the ones that the backend opens at the next start."""
        self._backend.promote(tables.topic, tables.storage)

    def serve(self, tables: TopicTables) -> None:
        """Answer views of the topic's directories from these tables. Watches of the former ones end."""
        former = self.serving.get(tables.topic)
        self.serving[tables.topic] = tables
        for table in tables.tables:
            self.served[table.directory.name].swap(table)
        if former is None or former is tables:
            return
        for old, new in zip(former.tables, tables.tables, strict=True):
            if old.changes.recording:
                new.changes.start_recording()
            old.changes.end()

    def open_views(self, progress: Progress) -> None:
        """Open the views for lookups, then begin to serve in `progress`."""
        if progress.state is StoreState.LOADING:
            for served in self.served.values():
                served.open = True
        if not progress.serve() and progress.state is StoreState.CLOSED:  # by another thread, in between
            self.close_views()

    def close_views(self) -> None:
        """Close the views: lookups raise an error."""
        for served in self.served.values():
            served.open = False

    def by_topic(self) -> dict[str, TopicTables]:
        """Return the tables of each topic that are served; of topics not served yet, those that are read into."""
        return {**self.reading, **self.serving}

    def tables(self) -> list[Table]:
        """Return the table of each directory, of the same generations as `by_topic`."""
        return [table for tables in self.by_topic().values() for table in tables.tables]

    def close(self) -> None:
        """Close the storage of all tables, then the backend. Called once."""
        every = [*self.serving.values(), *self.reading.values()]
        for tables in {id(tables): tables for tables in every}.values():
            tables.storage.close()
        self._backend.close()
