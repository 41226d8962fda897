"""GlobalStore: directories in memory or on disk, fed by Kafka topics, complete before the first lookup."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import Any, Self, TypeVar, Unpack, overload

from compactory.base_store import BaseStore
from compactory.clock import clock
from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError, Unreachable, WaitTimeout
from compactory.ingest.engine import Engine
from compactory.ingest.gc_tuning import collector_paused, trim_early
from compactory.kafka.client import Kafka
from compactory.options import StoreArguments, StoreOptions, directory_problems
from compactory.read.snapshot import DirectorySnapshot
from compactory.read.store_snapshot import StoreSnapshot
from compactory.read.view import View
from compactory.records import Partition, QuarantinedRecord, StoreState
from compactory.storage.backend import Backend
from compactory.storage.memory_backend import Memory
from compactory.table.table import Table
from compactory.threads import in_forked_children, keep_forever, start_thread
from compactory.token import Token
from compactory.token import targets as targets_of

__all__ = ["GlobalStore"]

log = logging.getLogger("compactory.store")

T = TypeVar("T")


class GlobalStore(BaseStore):
    """Directories held in this process, whole, and kept up to date from Kafka: a mapping from name to `View`.

    ``kafka``            bootstrap servers, or librdkafka properties (TLS and SASL included)
    ``directories``      `Directory` objects, or names of topics that are looked up by record key
    ``backend``          where entries are kept; default: memory. ``RocksDB(path)`` keeps them on disk
    ``options``          see `StoreOptions`: names, meanings and defaults

    ``start`` returns when every partition is applied up to the high watermark captured when it was first seen. From
    then on the store serves, whatever happens to Kafka. Sometimes it can't continue from its position: the topic was
    created again, records between were deleted, the log was cut off, or tombstones may be gone. It then reads the topic
    anew. Until that is done, it is STALE and serves the former data. A reader that dies makes the store FAILED. This
    wakes every waiter and turns ``ready`` off; lookups go on with the last complete data.

    All methods may be called by any thread. Raises ConfigError from the constructor with every problem at once.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, Any] | Kafka,
        directories: Iterable[str | Directory[Any]],
        *,
        backend: Backend | None = None,
        **options: Unpack[StoreArguments],
    ) -> None:
        listed = [Directory(item) if isinstance(item, str) else item for item in _listed(directories)]
        checked_options = StoreOptions(**options)
        problems = [*directory_problems(listed), *_backend_problems(backend)]
        problems += [f"{name} {problem}" for name, problem in checked_options.problems()]
        try:
            cluster = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from None
        if problems:
            raise ConfigError(problems)
        self._pid = os.getpid()
        engine = Engine(cluster, listed, Memory() if backend is None else backend, checked_options)
        checked = checked_options.validate == "apply"
        views = {
            directory.name: View(directory, engine.served[directory.name], checked=checked) for directory in listed
        }
        super().__init__(engine, views)
        # A store that is dropped without close() must not leave its threads behind; the engine doesn't refer to it.
        self._finalizer = weakref.finalize(self, start_thread, "close", engine.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> None:
        """Read every topic to its high watermark; return when the store is ready. Once per store.

        Raises ConfigError (a topic does not exist, no right to read it), Unreachable (no broker within the time-outs),
        StartTimeout with the partitions that block, StoreFailed, StoreClosed.
        """
        if os.getpid() != self._pid:
            raise CompactoryError(_forked(self._pid))
        if not self._progress.move(StoreState.LOADING):
            self._progress.raise_end()
            raise CompactoryError("the store was started already; a store starts once")
        in_forked_children(self._leave_to_parent)
        began = clock()
        try:
            tune_gc = self._engine.options.tune_gc
            if tune_gc:
                trim_early()
            with collector_paused() if tune_gc else nullcontext():
                self._engine.load(began)
        except BaseException as error:
            self._progress.move(StoreState.FAILED, error)
            self._engine.give_up()
            self._finalizer.detach()  # it would keep the error, whose frames refer to this store, for ever
            raise
        self._engine.load_seconds = load_seconds = clock() - began
        log.info("%s in %.3f s: %d partitions", self.state.value, load_seconds, len(self._progress.reading_positions()))

    def close(self) -> None:
        """Stop reading, wake every waiter with StoreClosed, free the entries. Idempotent; complete on return.

        In a forked child nothing happens: files, connections and threads are the parent's.
        """
        if os.getpid() == self._pid:
            self._engine.close()
        self._finalizer.detach()

    def end_offsets(self, timeout: float = 5.0) -> dict[Partition, int]:
        """Ask the broker for the high watermark of every partition.

        Raises Unreachable, NotReady before ``start``, StoreFailed, StoreClosed.
        """
        self._refuse_idle()
        return self._discovery.high_watermarks(timeout)

    def retry(self, *errors: QuarantinedRecord, timeout: float = 5.0) -> list[QuarantinedRecord]:
        """Apply bad records again (all outstanding ones without arguments); return the records that are still bad.

        Use it if a ``decode`` callable depends on a system that has changed since. Records that were replaced or are no
        longer kept are returned too, because the retry did not make them good. After WaitTimeout the reader may still
        finish the retry. Raises WaitTimeout, StoreFailed, StoreClosed.
        """
        self._refuse_idle()
        return self._engine.resolve(errors or tuple(self.quarantine()), Table.retry, timeout)

    def skip(self, *errors: QuarantinedRecord, timeout: float = 5.0) -> list[QuarantinedRecord]:
        """Drop bad records, as if they had never come; return the records that no longer existed.

        From now on lookups of their keys return the last good value, or find nothing, without a hint of a newer
        record. Raises WaitTimeout, StoreFailed, StoreClosed.
        """
        self._refuse_idle()
        return self._engine.resolve(errors, lambda table, bad: table.quarantine.skip(bad), timeout)

    @overload
    def snapshot(self) -> StoreSnapshot: ...
    @overload
    def snapshot(self, name: str, timeout: float = 5.0) -> DirectorySnapshot: ...
    def snapshot(self, name: str | None = None, timeout: float = 5.0) -> StoreSnapshot | DirectorySnapshot:
        """Return all directories as they are now, at one set of positions, to read from: cheap enough for each request.

        It waits for the batch that is being applied, if there is one. Raises NotReady, StoreFailed, StoreClosed.

        With ``name`` return the contents of a directory, to compare with its topic. Close it after use.

        Raises UnknownDirectory, NotReady (also while the topic is read anew), WaitTimeout if the reader is busy for
        that long, StoreFailed, StoreClosed.
        """
        if name is None:
            return self._engine.frozen(self._views)
        view = self[name]
        self._refuse_idle()
        return self._engine.snapshot(view.directory, timeout)

    def barrier(self, timeout: float = 5.0) -> None:
        """Wait until everything that was in the topics when this was called is visible.

        Partitions that were added meanwhile count too. Raises WaitTimeout with the gap (an open transaction can be the
        cause), Unreachable, StoreFailed, StoreClosed.
        """
        began = clock()
        self._refuse_idle()
        targets = self._discovery.high_watermarks(timeout)
        remaining = max(0.0, timeout - (clock() - began))
        self._progress.wait_until(targets, remaining, "the barrier")

    def wait_for(self, *tokens: Token, timeout: float = 5.0) -> None:
        """Wait until the written records of all tokens are visible.

        A token is satisfied by its own partition only. Raises ConfigError for a topic that the store does not read,
        WaitTimeout with the gap, StoreFailed, StoreClosed.
        """
        began = clock()
        self._refuse_idle()
        if not tokens:
            return
        try:
            targets = targets_of(tokens, self._discovery.topics)
        except WaitTimeout:  # of another topic of that name: perhaps of one that was created just now
            with suppress(Unreachable):
                self._discovery.high_watermarks(timeout)
            targets = targets_of(tokens, self._discovery.topics)
        remaining = max(0.0, timeout - (clock() - began))
        self._progress.wait_until(targets, remaining, "the token" if len(tokens) == 1 else "one of the tokens")

    def _leave_to_parent(self) -> None:
        """In a forked child the threads are gone: the copy must not answer from data that nobody keeps up to date."""
        self._engine.orphan(CompactoryError(_forked(self._pid)))
        keep_forever(self._engine)  # frames of the error that ended it may hold the parent's clients
        self._finalizer.detach()

    def _refuse_idle(self) -> None:
        if self.state is StoreState.NEW:
            raise self._progress.refusal()
        self._progress.raise_end()


def _forked(pid: int) -> str:
    return (
        f"the store was made in process {pid} and this is process {os.getpid()}: threads and connections do not "
        "survive a fork. Make and start the store in each worker (gunicorn: post_fork; uvicorn: lifespan; "
        "multiprocessing: in the target, or the start method 'spawn')"
    )


def _backend_problems(backend: Any) -> Iterator[str]:
    if backend is not None and not isinstance(backend, Backend):
        yield f"backend must be Memory(…) or RocksDB(…), not {backend!r}"


def _listed(directories: Any) -> list[Any]:
    return [directories] if isinstance(directories, str | Directory) else list(directories)
