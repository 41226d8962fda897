"""MasteredWriter: the writes of a directory mastered in Kafka, made by one process at a time."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from operator import attrgetter
from threading import Lock
from typing import Any, NamedTuple, Self, TypeVar, overload

import orjson

from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError, LeaseLost, NotReady
from compactory.ingest.gc_tuning import collector_paused
from compactory.records import StoreState
from compactory.store import GlobalStore
from compactory.token import Token
from compactory.write.operation import (
    DEFAULT_CURSOR,
    Operation,
    OperationBatch,
    WriterCursor,
    Written,
    WrittenBatch,
    check_cursor_name,
    failure,
)
from compactory_mastered.checking import Checker
from compactory_mastered.current_state import CurrentState
from compactory_mastered.fenced_producer import FencedProducer, OutcomeUnknown
from compactory_mastered.idempotency import RememberedAnswers
from compactory_mastered.owner import CURSOR_PREFIX, OWNER, Owner, PendingOperations, answers_topic_of
from compactory_mastered.rules import rule_problems, topic_problems

__all__ = ["Announcement", "MasteredWriter", "check_topics", "start_writers"]

log = logging.getLogger("compactory.writer")

R = TypeVar("R")

_OPERATION_COUNT = attrgetter("operation_count")

_MAX_OPERATIONS = 1000  # of one transaction
_FENCED_SECONDS = 1.0  # after it was fenced, a process does not take the ownership back for so long
_RETRY_INTERVAL = 0.02  # seconds between two tries of `write` while another process owns the directory
_READ_TIMEOUT = 0.02  # seconds to wait until the store has read the last transaction
_CHECK_TIMEOUT = 3.0  # seconds for the checks before a load
_MAX_RECORD_BYTES = 1_000_000  # the client's own limit
_ANSWER_BYTES = 4096  # upper bound of what a remembered answer has beside the value


class Announcement(NamedTuple):
    """The address that an owner has announced, and the offset of this record."""

    url: str
    offset: int


class MasteredWriter:
    """Writes one directory that has ``rules``. Guarantees 17 and 18 hold between all processes that write through one.

    ``store``      a `GlobalStore` with the directory and the directories that it references
    ``directory``  the directory or its name
    ``url``        address at which this process accepts forwarded requests; None: it accepts none
    ``timeout``    seconds that Kafka may take; a write fails after that

    One process at a time owns a directory. It becomes the owner by opening a producer with the directory's
    transactional id, which fences the previous owner. Then it reads the topic to its end, and checks operations in
    their order against the entries at the end of the log. Pending operations are written in one transaction together,
    with the answers to those that have an Idempotency-Key. Results are returned after the commit. Refusals are too, so
    no answer of a previous owner can be wrong.

    ``start`` must have returned before the first write. All methods may be called by any thread.
    """

    def __init__(
        self, store: GlobalStore, directory: str | Directory[Any], *, url: str | None = None, timeout: float = 10.0
    ) -> None:
        problems = rule_problems(store.directories)
        if problems:
            raise ConfigError(problems)
        self._view = store[directory]
        self.directory = self._view.directory
        rules = self.directory.rules
        if rules is None:
            raise ConfigError(f"directory {self.directory.name!r} is not mastered in Kafka: it has no rules")
        self.url = url
        self._rules = rules
        self._store = store
        self._timeout = timeout
        self._kafka = store.kafka
        self._topic = self.directory.topic
        self._answers_topic = answers_topic_of(self._topic)
        self._answers_store = GlobalStore(
            self._kafka.properties(),  # not the `Kafka` itself: closing a store ends all requests of its `Kafka`
            [Directory("answers", topic=self._answers_topic)],
            missing_topic="wait",  # a broker may not know a topic yet that was just created
            start_timeout=30.0,
        )
        self._checker = Checker(self.directory, rules, {name: store[name] for name in rules.references.values()})
        self._record_bytes = _MAX_RECORD_BYTES
        self._thread = ThreadPoolExecutor(1, f"compactory-write-{self.directory.name}")
        self._submitting = Lock()  # guards _is_open and appending to _pending; the thread removes without it
        self._pending: deque[PendingOperations] = deque()
        self._is_open = False
        self._fenced_at = float("-inf")
        self._owner: Owner | None = None  # set by the thread while this process is the owner

    def __enter__(self) -> Self:
        start_writers([self])
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def owns(self) -> bool:
        """True if this process was the owner at its last write or check."""
        return self._owner is not None

    @property
    def owner(self) -> Announcement | None:
        """The newest announcement of an owner; None if there is none, or that owner has no address."""
        with suppress(CompactoryError, KeyError):
            entry = self._answers_store["answers"].entry(OWNER)
            url = orjson.loads(entry.value)["url"]
            return None if url is None else Announcement(url, entry.offset)
        return None

    def problems(self, *, loading: bool = False) -> list[str]:
        """Return every problem of the topic and of the rights on it. Raises Unreachable.

        ``loading``: the store has not started yet, and will itself report a topic that does not exist.
        """
        timeout = _CHECK_TIMEOUT if loading else self._timeout
        if not self._kafka.topics([self._topic], timeout):
            return [] if loading else [f"topic {self._topic!r} does not exist: create it with cleanup.policy=compact"]
        topics = [self._topic, self._answers_topic]
        configs = self._kafka.topic_configs(topics, timeout)
        problems = [problem for name in configs for problem in topic_problems(name, configs[name], self._rules)]
        return [*problems, *self._kafka.lacking_rights(topics, ["Write"], timeout)]

    def start(self) -> None:
        """Create the topic of answers if it does not exist, read it, and accept operations. See `start_writers`."""
        self._kafka.create_topic(self._answers_topic, partitions=1, config={"cleanup.policy": "compact"})
        self._answers_store.start()
        topics = [self._topic, self._answers_topic]
        configs = self._kafka.topic_configs(topics, self._timeout).values()
        self._record_bytes = min([_MAX_RECORD_BYTES, *(int(config["max.message.bytes"]) for config in configs)])
        self._checker.max_record_bytes = self._record_bytes - _ANSWER_BYTES
        self._is_open = True

    def close(self) -> None:
        """Refuse new operations, finish pending ones, end the thread. Idempotent; complete on return."""
        with self._submitting:
            self._is_open = False
        self._thread.shutdown()
        self._give_up_ownership()
        self._answers_store.close()

    def put(self, key: str, value: dict[str, Any], **conditions: Any) -> Written:
        """Create or replace an entry. ``conditions`` are those of `Operation`. Raises what `write` does."""
        return self.write(Operation(kind="put", key=key, value=value, **conditions))

    def patch(self, key: str, value: dict[str, Any], **conditions: Any) -> Written:
        """Merge a patch into an entry (RFC 7396). Raises what `write` does."""
        return self.write(Operation(kind="patch", key=key, value=value, **conditions))

    def delete(self, key: str, **conditions: Any) -> Written:
        """Remove an entry. Raises what `write` does."""
        return self.write(Operation(kind="delete", key=key, **conditions))

    def post(self, value: dict[str, Any], **conditions: Any) -> Written:
        """Create an entry whose key is derived from its fields. A repeat with the same value has the same result."""
        return self.write(Operation(kind="post", value=value, **conditions))

    def write(self, operation: Operation) -> Written:
        """Write; return once it is committed. This process becomes the owner if it is not.

        Raises WriteRefused (422), Conflict, PreconditionFailed, EntryMissing: nothing was written. Raises WriteFailed,
        which says whether the outcome is ``unknown``; a repeat with the same Idempotency-Key returns the outcome then.
        """
        return self._result(lambda: self.submit([operation]), operation.key)

    def write_batch(
        self,
        operations: Sequence[Operation],
        *,
        cursor: WriterCursor | None = None,
        idempotency_key: str | None = None,
    ) -> WrittenBatch:
        """Write 1 to 100 operations on different keys, all or none; return once they are committed.

        Each operation is checked as if those before it had been written. The cursor's ``next`` is stored with them if
        its ``expected`` is the stored one. So a feed that was interrupted goes on after its last batch.

        Raises BatchRefused with the first operation that is refused, CursorConflict with the stored cursor,
        WriteRefused, WriteFailed as `write`.
        """
        batch = OperationBatch(operations=operations, cursor=cursor, idempotency_key=idempotency_key)
        return self._result(lambda: self.submit([batch]), None)

    def cursor(self, name: str = DEFAULT_CURSOR) -> str | None:
        """Return the cursor that the last batch with this cursor's name has stored; None if there is none.

        A batch of the last milliseconds may be missing. A batch with the older cursor gets CursorConflict with the
        stored one. Raises WriteRefused for a name that no cursor can have.
        """
        check_cursor_name(name)
        document = self._answers_store["answers"].get(f"{CURSOR_PREFIX}{name}")
        return None if document is None else document["cursor"]

    def _result(self, submit: Callable[[], Future[list[R | CompactoryError]]], key: str | None) -> R:
        """Return the only result of what ``submit`` submits; submit it again while ownership moves."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                [result] = submit().result()
            except LeaseLost as error:
                if time.monotonic() > deadline:
                    raise failure(self._topic, key, error, unknown=False) from error
                time.sleep(_RETRY_INTERVAL)
                continue
            if isinstance(result, CompactoryError):
                raise result
            return result

    @overload
    def submit(self, operations: Sequence[Operation]) -> Future[list[Written | CompactoryError]]: ...
    @overload
    def submit(self, operations: Sequence[OperationBatch]) -> Future[list[WrittenBatch | CompactoryError]]: ...
    @overload
    def submit(self, operations: Sequence[Operation | OperationBatch]) -> Future[list[Any]]: ...
    def submit(self, operations: Sequence[Operation | OperationBatch]) -> Future[Any]:
        """Return a future of the result or the error of each operation, in order; all are written in one transaction.

        A refused operation does not prevent the others; only those of a batch are written all or none. This process
        becomes the owner if it is not. The future fails with LeaseLost, and nothing is written, if another process has
        just become the owner. Then ask the `owner`.
        """
        pending = PendingOperations(operations, sum(map(_OPERATION_COUNT, operations)))
        pending.future.set_running_or_notify_cancel()  # a caller may stop waiting, but can't cancel the write
        with self._submitting:
            if self._is_open:
                self._pending.append(pending)
                if len(self._pending) == 1:  # otherwise the thread is writing, or has been asked to
                    self._thread.submit(self._write_pending)
                return pending.future
        pending.future.set_exception(NotReady(f"directory {self.directory.name!r} accepts no writes now"))
        return pending.future

    def _write_pending(self) -> None:
        """Write all pending operations, in as many transactions as they need.

        Each transaction begins once the store has read the one before. Meanwhile more operations arrive for it. Kafka
        accepts no records until it has marked the end of a transaction, and the client would wait 20 ms.
        """
        while self._pending:
            if self._owner is not None:
                with suppress(CompactoryError):
                    self._store.wait_for(*self._owner.last_tokens, timeout=_READ_TIMEOUT)
            self._write_batch(self._next_pending(_MAX_OPERATIONS))

    def _next_pending(self, operations: int) -> list[PendingOperations]:
        """Remove and return pending items until they have this number of operations or more."""
        batch, size = list[PendingOperations](), 0
        while self._pending and size < operations:
            batch.append(self._pending.popleft())
            size += batch[-1].operation_count
        return batch

    def _write_batch(self, batch: list[PendingOperations]) -> None:
        """Write a batch and the operations that join it, and settle all their futures, with any error too."""

        def joining() -> list[PendingOperations]:
            return self._next_pending(_MAX_OPERATIONS - sum(pending.operation_count for pending in batch))

        try:
            owner = self._current_owner()
            with collector_paused():
                owner.decide(batch)
                owner.commit(batch, joining)
                results = [*map(owner.results, batch)]
        except Exception as error:  # noqa: BLE001 (each caller gets it)
            self._fail(batch, error)
        else:
            for pending, pending_results in zip(batch, results, strict=True):
                pending.future.set_result(pending_results)

    def _fail(self, batch: Sequence[PendingOperations], error: Exception) -> None:
        if self._owner is not None:
            self._fenced_at = time.monotonic()
            self._give_up_ownership()
        is_expected = isinstance(error, CompactoryError)
        if not is_expected:
            log.error("writes of directory %s failed", self.directory.name, exc_info=error)
        is_unknown = not is_expected or isinstance(error, OutcomeUnknown)
        for pending in batch:
            if isinstance(error, LeaseLost):
                pending.future.set_exception(error)
            else:
                pending.future.set_result(
                    [failure(self._topic, operation.key, error, unknown=is_unknown) for operation in pending.operations]
                )

    def _current_owner(self) -> Owner:
        """Return the state of this process as the owner; become the owner first if it is not."""
        owner = self._owner
        is_same_topic = owner is not None and owner.state.topic_id == self._store.topic_id(self._topic)
        if owner is not None and is_same_topic and not owner.producer.is_end_in_doubt:
            owner.state.prune(self._store.positions())
            return owner
        self._give_up_ownership()
        if time.monotonic() - self._fenced_at < _FENCED_SECONDS:
            raise LeaseLost(f"another process writes directory {self.directory.name!r}")
        self._owner = self._take_ownership()
        return self._owner

    def _take_ownership(self) -> Owner:
        """Fence the previous owner and read both topics to their ends. Raises CompactoryError."""
        if self._store.state is not StoreState.READY:
            raise NotReady(f"the store is {self._store.state.value}: writes need all entries of {self._topic!r}")
        producer = FencedProducer(self._kafka, self._topic, self._timeout, self._record_bytes)
        try:
            producer.open()
            self._read_to_the_end()
        except BaseException:
            producer.close()
            raise
        view, rules = self._answers_store["answers"], self._rules
        records = {key: view.raw(key) for key in view}
        cursors = {
            key.removeprefix(CURSOR_PREFIX): orjson.loads(value)["cursor"]
            for key, value in records.items()
            if key.startswith(CURSOR_PREFIX)
        }
        log.info("this process writes directory %s from now on", self.directory.name)
        return Owner(
            topic=self._topic,
            answers_topic=self._answers_topic,
            url=self.url,
            rules=rules,
            checker=self._checker,
            producer=producer,
            state=CurrentState(self._view, rules.unique, self._store.topic_id(self._topic)),
            answers=RememberedAnswers(records, rules),
            cursors=cursors,
        )

    def _read_to_the_end(self) -> None:
        for store, topic in ((self._store, self._topic), (self._answers_store, self._answers_topic)):
            metadata = self._kafka.topics([topic], self._timeout).get(topic)
            if metadata is None:
                raise NotReady(f"topic {topic!r} does not exist")
            end_offsets = self._kafka.high_watermarks(metadata.all(), self._timeout)
            tokens = [Token(*partition, end - 1, metadata.topic_id) for partition, end in end_offsets.items() if end]
            store.wait_for(*tokens, timeout=self._timeout)

    def _give_up_ownership(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.producer.close()


def check_topics(writers: Sequence[MasteredWriter], *, loading: bool = False) -> None:
    """Raise ConfigError with every problem of the topics of these directories. Raises Unreachable."""
    problems = [problem for writer in writers for problem in writer.problems(loading=loading)]
    if problems:
        raise ConfigError(problems)


def start_writers(writers: Sequence[MasteredWriter]) -> None:
    """Check the topics of all directories, then start all writers. After an error all are closed.

    Raises ConfigError with every problem at once, Unreachable, StartTimeout.
    """
    with ExitStack() as closing:
        for writer in writers:
            closing.callback(writer.close)
        check_topics(writers)
        for writer in writers:
            writer.start()
        closing.pop_all()
