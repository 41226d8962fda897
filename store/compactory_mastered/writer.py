"""MasteredWriter: the writes of a directory whose master is Kafka, made by one process at a time."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Lock
from typing import Any, Self

import orjson

from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError, LeaseLost, NotReady
from compactory.ingest.gc_tuning import collector_paused
from compactory.records import StoreState
from compactory.store import GlobalStore, kafka_of
from compactory.token import Token
from compactory_mastered.checking import Checker
from compactory_mastered.current_state import CurrentState
from compactory_mastered.fenced_producer import FencedProducer, OutcomeUnknown
from compactory_mastered.fitness import rule_problems, topic_problems
from compactory_mastered.idempotency import Answers
from compactory_mastered.operation import Operation, Written, failure
from compactory_mastered.owner import OWNER, Item, Owner

__all__ = ["MasteredWriter", "check_topics", "start_writers"]

log = logging.getLogger("compactory.writer")

_MOST = 1000  # operations of one transaction
_HOLD_OFF = 1.0  # seconds after it was fenced in which a process leaves the ownership to the other one
_LOOK = 0.02  # seconds between two looks at who the owner is
_PAUSE = 0.02  # seconds that the client waits itself before it begins a transaction again
_QUICK = 3.0  # seconds for the look at topics before a load
_RECORD_BYTES = 1_000_000  # the client's own limit
_OVERHEAD = 4096  # bytes that an answer takes beside the value, at most


class MasteredWriter:
    """Writes one directory that has ``rules``. Guarantees 17 and 18 hold between all processes that write through one.

    ``store``      a `GlobalStore` that has the directory and those that it references
    ``directory``  the directory or its name
    ``url``        address under which this process takes forwarded requests; None: it takes none
    ``timeout``    seconds that Kafka may take; a write fails after that

    One process at a time owns a directory. It takes over by opening a producer with the directory's transactional id,
    which fences the former owner, reads the topic to its end, and then checks operations in the order in which they
    come: against the entries at the end of the log. Operations that wait are written in one transaction together, with
    the answers to those that have an Idempotency-Key. They are answered after the commit. Refusals are too: so no
    answer of a former owner can be wrong.

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
        self._kafka = kafka_of(store)
        self._topic = self.directory.topic
        self._answers_topic = f"{self._topic}-writes"
        self._notes = GlobalStore(  # a broker may take a moment to know a topic that was just created
            self._kafka.properties(),  # a store that is closed ends what is asked through its `Kafka`
            [Directory("notes", topic=self._answers_topic)], missing_topic="wait", start_timeout=30.0,
        )  # fmt: skip
        self._checker = Checker(self.directory, rules, {name: store[name] for name in rules.references.values()})
        self._record_bytes = _RECORD_BYTES
        self._thread = ThreadPoolExecutor(1, f"compactory-write-{self.directory.name}")
        self._handing_over = Lock()  # guards the next two; the thread takes what waits without it
        self._waiting: deque[Item] = deque()
        self._open = False
        self._fenced_at = float("-inf")
        self._owned: Owner | None = None  # written by the thread

    def __enter__(self) -> Self:
        start_writers([self])
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def owns(self) -> bool:
        """True if this process was the owner at its last write or check."""
        return self._owned is not None

    @property
    def owner(self) -> str | None:
        """The address of the owner as far as known here; None if there was none yet, or it has no address."""
        announcement = self.announcement
        return None if announcement is None else announcement[0]

    @property
    def announcement(self) -> tuple[str, int] | None:
        """The owner's address, and the offset at which it said that it is the owner; None as for ``owner``."""
        with suppress(CompactoryError, KeyError):
            entry = self._notes["notes"].entry(OWNER)
            url = orjson.loads(entry.value)["url"]
            return None if url is None else (url, entry.offset)
        return None

    def problems(self, *, loading: bool = False) -> list[str]:
        """Return what is wrong with the topic, as far as Kafka tells. Raises Unreachable.

        ``loading``: the store has not started yet, and tells itself about a topic that does not exist.
        """
        timeout = _QUICK if loading else self._timeout
        if not self._kafka.topics([self._topic], timeout):
            return [] if loading else [f"topic {self._topic!r} does not exist: create it with cleanup.policy=compact"]
        topics = [self._topic, self._answers_topic]
        configs = self._kafka.topic_configs(topics, timeout)
        wrong = [problem for name in configs for problem in topic_problems(name, configs[name], self._rules)]
        return [*wrong, *self._kafka.lacking_rights(topics, ["Write"], timeout)]

    def start(self) -> None:
        """Create the topic of answers if it is not there, read it, and take operations. See `start_writers`."""
        self._kafka.create_topic(self._answers_topic, partitions=1, config={"cleanup.policy": "compact"})
        self._notes.start()
        topics = [self._topic, self._answers_topic]
        configs = self._kafka.topic_configs(topics, self._timeout).values()
        self._record_bytes = min([_RECORD_BYTES, *(int(config["max.message.bytes"]) for config in configs)])
        self._checker.largest = self._record_bytes - _OVERHEAD
        self._open = True

    def close(self) -> None:
        """Refuse new operations, answer those that wait, end the thread. Idempotent; complete on return."""
        with self._handing_over:
            self._open = False
        self._thread.shutdown()
        self._drop()
        self._notes.close()

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
        """Create an entry whose key is derived from its fields; the same value again gets the same answer."""
        return self.write(Operation(kind="post", value=value, **conditions))

    def write(self, operation: Operation) -> Written:
        """Write; return once it is committed. This process becomes the owner where it is not.

        Raises WriteRefused (422), Conflict, PreconditionFailed, EntryMissing: nothing was written. Raises WriteFailed,
        which says whether the outcome is ``unknown``; the same operation with its Idempotency-Key tells then.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                [result] = self.submit([operation]).result()
            except LeaseLost as error:
                if time.monotonic() > deadline:
                    raise failure(self._topic, operation.key, error, unknown=False) from error
                time.sleep(_LOOK)
                continue
            if isinstance(result, CompactoryError):
                raise result
            return result

    def submit(self, operations: Sequence[Operation]) -> Future[list[Written | CompactoryError]]:
        """Return a future of the results of operations, which are written in one transaction.

        The future has the result or the error of each operation, in order.

        This process becomes the owner where it is not. The future fails with LeaseLost, and nothing is written, if
        another one took over just now. Then ask the `owner`.
        """
        item = Item(operations)
        item.future.set_running_or_notify_cancel()  # who waits may give up, but not take it back
        with self._handing_over:
            if self._open:
                self._waiting.append(item)
                if len(self._waiting) == 1:  # else a turn is under way or was asked for
                    self._thread.submit(self._turn)
                return item.future
        item.future.set_exception(NotReady(f"directory {self.directory.name!r} takes no writes now"))
        return item.future

    def _turn(self) -> None:
        """Write what waits, in each transaction as much as it takes.

        Each begins once the store has read the one before; meanwhile more operations come for it. Kafka takes no
        records before it has marked the end of a transaction, and the client would pause for 20 ms.
        """
        while self._waiting:
            if self._owned is not None:
                with suppress(CompactoryError):
                    self._store.wait_for(*self._owned.last, timeout=_PAUSE)
            self._answer(self._taken(_MOST))

    def _taken(self, most: int) -> list[Item]:
        """Take items that wait, until they have so many operations."""
        taken, size = list[Item](), 0
        while self._waiting and size < most:
            taken.append(self._waiting.popleft())
            size += len(taken[-1].operations)
        return taken

    def _answer(self, batch: list[Item]) -> None:
        """Write a batch and what joins it; answer each of its operations, whatever happens."""
        try:
            owner = self._own()
            with collector_paused():
                owner.decide(batch)
                owner.commit(batch, lambda: self._taken(_MOST - sum(len(item.operations) for item in batch)))
                answers = [*map(owner.results, batch)]
        except Exception as error:  # noqa: BLE001 (each caller gets it)
            self._fail(batch, error)
        else:
            for item, answer in zip(batch, answers, strict=True):
                item.future.set_result(answer)

    def _fail(self, batch: Sequence[Item], error: Exception) -> None:
        if self._owned is not None:
            self._fenced_at = time.monotonic()
            self._drop()
        expected = isinstance(error, CompactoryError)
        if not expected:
            log.error("writes of directory %s failed", self.directory.name, exc_info=error)
        unknown = not expected or isinstance(error, OutcomeUnknown)
        for item in batch:
            if isinstance(error, LeaseLost):
                item.future.set_exception(error)
            else:
                item.future.set_result(
                    [failure(self._topic, operation.key, error, unknown=unknown) for operation in item.operations]
                )

    def _own(self) -> Owner:
        owned = self._owned
        is_same_topic = owned is not None and owned.state.topic_id == self._store.topic_id(self._topic)
        if owned is not None and is_same_topic and not owned.producer.is_end_in_doubt:
            owned.state.prune(self._store.positions())
            return owned
        self._drop()
        if time.monotonic() - self._fenced_at < _HOLD_OFF:
            raise LeaseLost(f"another process writes directory {self.directory.name!r}")
        self._owned = self._taken_over()
        return self._owned

    def _taken_over(self) -> Owner:
        """Fence the former owner, then read both topics to their ends. Raises what may come of that."""
        if self._store.state is not StoreState.READY:
            raise NotReady(f"the store is {self._store.state.value}: writes need all entries of {self._topic!r}")
        producer = FencedProducer(self._kafka, self._topic, self._timeout, self._record_bytes)
        try:
            producer.open()
            self._read_to_the_end()
        except BaseException:
            producer.close()
            raise
        notes, rules = self._notes["notes"], self._rules
        log.info("this process writes directory %s from now on", self.directory.name)
        return Owner(
            topic=self._topic,
            answers_topic=self._answers_topic,
            url=self.url,
            rules=rules,
            checker=self._checker,
            producer=producer,
            state=CurrentState(self._view, rules.unique, self._store.topic_id(self._topic)),
            answers=Answers({key: notes.raw(key) for key in notes}, rules),
        )

    def _read_to_the_end(self) -> None:
        for store, topic in ((self._store, self._topic), (self._notes, self._answers_topic)):
            found = self._kafka.topics([topic], self._timeout)
            if topic not in found:
                raise NotReady(f"topic {topic!r} does not exist")
            ends = self._kafka.high_watermarks(found[topic].all(), self._timeout)
            tokens = [Token(*place, end - 1, found[topic].topic_id) for place, end in ends.items() if end]
            store.wait_for(*tokens, timeout=self._timeout)

    def _drop(self) -> None:
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.producer.close()


def check_topics(writers: Sequence[MasteredWriter], *, loading: bool = False) -> None:
    """Raise ConfigError with all that is wrong with the topics of these directories; Unreachable."""
    problems = [problem for writer in writers for problem in writer.problems(loading=loading)]
    if problems:
        raise ConfigError(problems)


def start_writers(writers: Sequence[MasteredWriter]) -> None:
    """Check the topics of all directories, then start; where that fails, close all.

    Raises ConfigError with every problem at once, Unreachable, StartTimeout.
    """
    with ExitStack() as closing:
        for writer in writers:
            closing.callback(writer.close)
        check_topics(writers)
        for writer in writers:
            writer.start()
        closing.pop_all()
