"""The loop of a runner while its producer works: poll, call, and commit outputs with offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import structlog

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.kafka.client import Message
from compactory.records import Partition
from compactory.token import Token
from compactory_connectors.consumer.group import Position
from compactory_connectors.topics.publisher import Publisher, TopicRefused

from .event import Event, Output, Refused
from .membership import KeptEvents, Members
from .pending import Lanes, Parked, Task
from .processor import Processor
from .worker import Board

__all__ = ["Work"]

log = structlog.get_logger("compactory.process")

_POLL = 0.1  # seconds that a poll waits for a record
_PATIENCE = 1.0  # seconds after which an event that is not done is kept, so that the offset moves on
_GRACE = 5.0  # seconds that calls may take after a stop
_BATCH = 16  # events for each call at a time
_MOST = 1000  # events that are not done; more are not fetched


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """How a call ended. ``left`` is what is kept of an event that is not done; None: it is."""

    task: Task
    outputs: Sequence[Output]
    left: Parked | None = None


class Work:
    """The events under way. Owned by one thread; the function is called in others. Raises Unreachable, ConfigError."""

    def __init__(
        self,
        processor: Processor,
        group: Members,
        kept: KeptEvents,
        publisher: Publisher,
        threads: ThreadPoolExecutor,
        board: Board,
    ) -> None:
        self._processor = processor
        self._decode = processor.decoder()
        self._group = group
        self._kept = kept
        self._publisher = publisher
        self._threads = threads
        self._board = board
        self._ours: dict[Partition, Position] = {}  # as of the last poll
        self._lanes = Lanes()
        self._ended: SimpleQueue[Result] = SimpleQueue()
        self._results: list[Result] = []
        self._running = 0
        self._since = 0.0  # when the events were taken that the offset does not cover yet
        self._held = False

    def turn(self) -> bool:
        """Take events, call, commit what is done; whether something was committed."""
        if not self._lanes.unkept():
            self._take(self._processor.concurrency * _BATCH, 0.0 if self._running else _POLL)
        self._call_due()
        self._collect(0.02)
        undone = self._undone()
        if undone and time.monotonic() - self._since < _PATIENCE:
            return False
        return self._commit_all(undone)

    def finish(self) -> None:
        """Commit what ends within some seconds; what does not is kept for the next process."""
        deadline = time.monotonic() + _GRACE
        while self._running and time.monotonic() < deadline:
            self._collect(0.1)
        self._take(1, 0.0)  # a rebalance may have come
        self._commit_all(self._undone())

    def look_around(self) -> None:
        """Take up what an operator wants tried again; refresh the figures."""
        if self._kept.current():
            self._adopt()
            aside = [parked for parked in self._kept.events() if parked.state == "failed"]
            self._board.set_aside = sum(parked.place in self._ours for parked in aside)
        self._board.lag = self._group.lag()
        self._board.waiting = len(self._lanes)

    def _take(self, limit: int, timeout: float) -> None:
        full = len(self._lanes) >= _MOST
        if full is not self._held:
            self._group.hold(full)
            self._held = full
        fetched = self._group.poll(limit, timeout)
        self._board.polled_at = self._since = time.monotonic()
        self._follow()
        for each in fetched:
            for message in each.messages if self._group.is_current(each) else ():
                self._lanes.add(Task(_parked(message, self._group.topic_id), each.position, kept=False))

    def _follow(self) -> None:
        """Drop what belongs to partitions that were lost, and take up what is kept of those that were gained."""
        before = self._ours
        self._ours = {part: position for part, position in self._group.positions.items() if position is not None}
        for part, position in before.items():
            if self._ours.get(part) is not position:
                self._lanes.drop(position)
        if any(before.get(part) is not position for part, position in self._ours.items()):
            self._board.located, self._board.error, self._held = True, None, False
            self._adopt()

    def _adopt(self) -> None:
        for parked in self._kept.events():
            position = self._ours.get(parked.place)
            if position is not None and parked.state == "waiting" and parked.id not in self._lanes:
                self._lanes.add(Task(parked, position, kept=True))

    def _call_due(self) -> None:
        free = self._processor.concurrency - self._running
        for task in list(self._lanes.due())[:free]:
            task.running = True
            self._running += 1
            self._threads.submit(self._call, task, task.parked)

    def _call(self, task: Task, parked: Parked) -> None:
        """Call the function. In a thread of the pool."""
        decoded = False
        try:
            event = _event(parked, self._decode)
            decoded = True
            result = Result(task, self._processor.outputs(event))
        except BaseException as error:  # noqa: BLE001 (of the user's code: sys.exit, a coroutine that was cancelled)
            result = self._failure(task, parked, error, decoded=decoded)
        self._ended.put(result)

    def _failure(self, task: Task, parked: Parked, error: BaseException, *, decoded: bool) -> Result:
        retry, attempt = self._processor.retry, parked.attempts + 1
        final = not decoded or isinstance(error, Refused) or retry.ends(attempt, error)
        left = parked.after(error, None if final else retry.pause(attempt))
        log.warning("set aside" if final else "an attempt failed", processor=self._processor.name, id=parked.id,
                    attempt=attempt, error=type(error).__name__)  # fmt: skip
        return self._given_up(task, left) if final else Result(task, (), left)

    def _given_up(self, task: Task, left: Parked) -> Result:
        return Result(task, self._processor.failure(left.key, left.id, left.error or ""), left)

    def _collect(self, timeout: float) -> None:
        """Take the results of calls; wait for the first one."""
        try:
            while self._running:
                self._results.append(self._ended.get(timeout=timeout))
                self._running -= 1
                timeout = 0.0
        except Empty:
            return

    def _undone(self) -> list[Task]:
        """The tasks without a result that the offset does not cover yet."""
        done = {id(result.task) for result in self._results}
        return [task for task in self._lanes.unkept() if id(task) not in done]

    def _commit_all(self, undone: Sequence[Task]) -> bool:
        results, self._results = self._results, []
        places = self._ours.get  # another process has the partitions that are not ours any more
        ours = [each for each in results if places(each.task.parked.place) is each.task.position]
        if not ours and not undone:
            return False
        self._commit(ours, undone)
        return True

    def _commit(self, results: Sequence[Result], undone: Sequence[Task]) -> None:
        """Write outputs, what is to be kept and the offsets in one transaction."""
        try:
            self._transact(results, undone)
        except TopicRefused as error:
            self._commit_apart(results, undone, error)
            return
        for result in results:
            self._settle(result)
        for task in undone:
            task.kept = True
        for part, position in _parts(results, undone).items():
            self._group.advance(part, position.read)

    def _commit_apart(self, results: Sequence[Result], undone: Sequence[Task], error: TopicRefused) -> None:
        """Find the outputs that Kafka refuses: keep every event, then commit each by itself; that one is set aside."""
        if len(results) > 1 or (results and undone):
            self._commit([], [*undone, *(result.task for result in results if not result.task.kept)])
            for result in results:
                self._commit([result], [])
        elif results and results[0].outputs:
            task, left = results[0].task, results[0].task.parked.after(error, None)
            self._commit([self._given_up(task, left) if results[0].left is None else Result(task, (), left)], undone)
        else:
            raise Unreachable("Kafka", f"topic {self._kept.topic!r} takes no records: {error}") from error

    def _transact(self, results: Sequence[Result], undone: Sequence[Task]) -> None:
        def send(producer: Any) -> None:
            for result in results:
                for output in result.outputs:
                    headers = [*output.headers.items(), ("compactory-event-id", result.task.parked.id)]
                    producer.produce(output.topic, output.data(), output.key, headers=headers)
                if result.left is not None or result.task.kept:
                    self._keep(producer, result.task.parked.id, result.left)
            for task in undone:
                self._keep(producer, task.parked.id, task.parked)
            offsets = [self._group.place(part, position.read) for part, position in _parts(results, undone).items()]
            producer.send_offsets_to_transaction(offsets, self._group.metadata(), 9.0)
            self.before_commit()

        try:
            self._publisher.transact(send)
        except (ConfigError, TopicRefused, Unreachable):
            raise
        except CompactoryError as error:  # the group has gone on without us, or Kafka has ended the transaction
            raise Unreachable("Kafka", str(error)) from error

    def before_commit(self) -> None:
        """Do nothing; a test stops the process here."""

    def _keep(self, producer: Any, event: str, parked: Parked | None) -> None:
        value = None if parked is None else parked.data()
        producer.produce(self._kept.topic, value, event, on_delivery=self._noted)

    def _noted(self, error: Any, message: Message) -> None:
        if error is None:
            self._kept.note(Token.from_message(message))

    def _settle(self, result: Result) -> None:
        task, left = result.task, result.left
        if left is not None and left.state == "waiting":
            task.parked, task.kept, task.running = left, True, False
            self._board.counters["retries"] += 1
            return
        self._lanes.remove(task)
        self._board.counters["events" if left is None else "failed"] += 1


def _parts(results: Sequence[Result], undone: Sequence[Task]) -> dict[Partition, Position]:
    """Return the partitions of events. An offset of each is committed: that fences a member without it."""
    tasks = [*(result.task for result in results), *undone]
    return {task.parked.place: task.position for task in tasks}


def _parked(message: Message, topic_id: str | None) -> Parked:
    topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
    key, value = message.key(), message.value()
    return Parked(
        id=f"{topic_id or topic}-{partition}-{offset}",
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=message.timestamp()[1],
        key=None if key is None else bytes(key).decode(errors="replace"),
        value=None if value is None else bytes(value),
    )


def _event(parked: Parked, decode: Callable[[bytes], Any]) -> Event:
    value = None if parked.value is None else decode(parked.value)
    names = ("id", "topic", "partition", "offset", "timestamp_ms", "key")
    return Event(value=value, attempt=parked.attempts + 1, **{name: getattr(parked, name) for name in names})
