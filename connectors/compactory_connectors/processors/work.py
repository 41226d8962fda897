"""The loop of a runner while its producer works: poll, call, and commit outputs with offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import structlog

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.kafka.client import Message
from compactory.records import Partition
from compactory_connectors.kafka.consumer_group import Position
from compactory_connectors.kafka.publisher import Publisher, TopicRefused
from compactory_connectors.loop_thread import LoopThread

from .backlog import Backlog
from .event import Event, Refused
from .membership import KeptEvents, Members
from .pending import Parked, Task
from .processor import Processor
from .worker import Board

__all__ = ["Work"]

log = structlog.get_logger("compactory.process")

_POLL = 0.1  # seconds that a poll waits for a record
_PATIENCE = 1.0  # seconds after which an event that is not done is kept, so that the offset moves on
_GATHER = 0.1  # seconds in which further events that are due join a transaction
_GRACE = 5.0  # seconds that calls may take after a stop
_BATCH = 16  # events for each call at a time
_MOST = 100_000  # events that are not done; more are not fetched
_MOST_BYTES = 256 << 20  # of their values


@dataclass(slots=True, eq=False)
class Work:
    """The events under way. Owned by one thread; the function is called in others. Raises Unreachable, ConfigError."""

    processor: Processor
    decode: Callable[[bytes], Any]
    group: Members
    kept: KeptEvents
    publisher: Publisher
    threads: ThreadPoolExecutor
    loop: LoopThread
    board: Board
    _ours: dict[Partition, Position] = field(default_factory=dict)  # as of the last poll
    _backlog: Backlog = field(default_factory=Backlog)  # events of our partitions
    _unkept: dict[str, Task] = field(default_factory=dict)  # those that the topic of kept events does not have yet
    _uncommitted: list[Task] = field(default_factory=list)  # those that have ended
    _ended: SimpleQueue[Task] = field(default_factory=SimpleQueue)
    _running: int = 0  # calls, also of tasks that are not ours any more
    _since: float = 0.0  # when the events were taken that the offset does not cover yet
    _committed_at: float = 0.0  # time.monotonic()
    _held: bool = False

    def turn(self) -> bool:
        """Take events, call, commit what is done. Return True if something was committed."""
        if not self._unkept:
            is_busy = self._running or self._backlog.is_due()
            self._take(self.processor.concurrency * _BATCH, 0.0 if is_busy else _POLL)
        self._call_due()
        self._collect(0.02)
        return self._commit_all(_PATIENCE)

    def finish(self) -> None:
        """Commit what ends within some seconds; what does not is kept for the next process."""
        deadline = time.monotonic() + _GRACE
        while self._running and time.monotonic() < deadline:
            self._collect(0.1)
        self._take(1, 0.0)  # a rebalance may have come
        self._commit_all(0.0)

    def look_around(self) -> None:
        """Take up what an operator wants tried again; refresh the figures."""
        if self.kept.current():
            self._adopt(self.kept.changed())
            self.board.set_aside = sum(place in self._ours for place in self.kept.failed())
        self.board.lag = self.group.lag()
        self.board.waiting = len(self._backlog.tasks)

    def _take(self, limit: int, timeout: float) -> None:
        full = len(self._backlog.tasks) >= _MOST or self._backlog.bytes >= _MOST_BYTES
        if full is not self._held:
            self.group.hold(full)
            self._held = full
        fetched = self.group.poll(limit, timeout)
        self.board.polled_at = self._since = time.monotonic()
        self._follow()
        for each in fetched:
            for message in each.messages if self.group.is_current(each) else ():
                self._add(message, each.position)

    def _follow(self) -> None:
        """Drop what belongs to partitions that were lost, and take up what is kept of those that were gained."""
        before = self._ours
        self._ours = {part: position for part, position in self.group.positions.items() if position is not None}
        if self._ours != before:
            tasks = self._backlog.tasks.values()
            self._backlog = Backlog(task for task in tasks if self._ours.get(task.parked.place) is task.position)
            self._unkept = {event: task for event, task in self._unkept.items() if event in self._backlog.tasks}
        if any(before.get(part) is not position for part, position in self._ours.items()):
            self.board.located, self.board.error, self._held = True, None, False
            self._adopt(self.kept.waiting())

    def _adopt(self, events: Sequence[Parked]) -> None:
        """Take up events that are kept, where they are of our partitions."""
        for parked in events:
            position = self._ours.get(parked.place)
            if position is not None:
                self._backlog.add(Task(parked, position, kept=True, size=parked.size))

    def _add(self, message: Message, position: Position) -> None:
        parked = _parked(message, self.group.topic_id)
        task = Task(parked, position, kept=False, size=parked.size)
        if self._backlog.add(task):
            self._unkept[parked.id] = task

    def _call_due(self) -> None:
        for task in self._backlog.take(self.processor.concurrency - self._running):
            parked = self.kept.event(task.parked) if task.kept else task.parked
            if parked is None:
                self._backlog.put_back(task, soon=True)
                continue
            task.parked = parked
            self._running += 1
            self.threads.submit(self._call, task)

    def _call(self, task: Task) -> None:
        """Call the function. In a thread of the pool."""
        decoded = False
        try:
            event = _event(task.parked, self.decode)
            decoded = True
            task.left, task.outputs = None, self.processor.outputs(event, self.loop.wait_for)
        except BaseException as error:  # noqa: BLE001 (of the user's code: sys.exit, a coroutine that was cancelled)
            self._fail(task, error, decoded=decoded)
        self._ended.put(task)

    def _fail(self, task: Task, error: BaseException, *, decoded: bool) -> None:
        retry, attempt = self.processor.retry, task.parked.attempts + 1
        final = not decoded or isinstance(error, Refused) or retry.ends(attempt, error)
        task.left = task.parked.after(error, None if final else retry.pause(attempt))
        task.outputs = self.processor.failure(task.left, task.left.error) if final else ()
        log.warning(
            "an event was set aside" if final else "an attempt failed",
            processor=self.processor.name,
            id=task.parked.id,
            attempt=attempt,
            error=task.left.error,
            traceback=f"compactory process failed {self.processor.name} --json",
        )

    def _collect(self, timeout: float) -> None:
        """Take the results of calls; wait for the first one."""
        try:
            while self._running:
                task = self._ended.get(timeout=timeout)
                task.ended = True
                self._uncommitted.append(task)
                self._running -= 1
                timeout = 0.0
        except Empty:
            return

    def _commit_all(self, patience: float) -> bool:
        """Commit the events that have ended, and keep those that last longer than ``patience``, in seconds.

        Return whether there was an event to commit or keep.
        """
        ended = self._uncommitted = [
            task for task in self._uncommitted if self._backlog.tasks.get(task.parked.id) is task
        ]
        undone = [task for task in self._unkept.values() if not task.ended]
        now = time.monotonic()
        if not (ended or undone) or (undone and now - self._since < patience):
            return False
        if self._backlog.is_due() and now - self._committed_at < min(_GATHER, patience):
            return False
        self._commit(ended, undone)
        self._uncommitted = []
        self._committed_at = time.monotonic()
        return True

    def _commit(self, ended: Sequence[Task], undone: Sequence[Task]) -> None:
        """Write outputs, what is to be kept and the offsets in one transaction."""
        # An offset of each partition is committed: that fences a member without it.
        positions = {task.parked.place: task.position for task in (*ended, *undone)}
        try:
            self._transact(ended, undone, positions)
        except TopicRefused as error:
            self._commit_apart(ended, undone, error)
            return
        for task in ended:
            self._settle(task)
        for task in undone:
            task.kept = True
            self._unkept.pop(task.parked.id, None)
            if not task.running:
                task.parked = task.parked.without_value()
        for part, position in positions.items():
            self.group.advance(part, position.read)

    def _commit_apart(self, ended: Sequence[Task], undone: Sequence[Task], error: TopicRefused) -> None:
        """Find the outputs that Kafka refuses: keep every event, then commit each by itself; that one is set aside."""
        if len(ended) > 1 or (ended and undone):
            self._commit([], [*undone, *(task for task in ended if not task.kept)])
            for task in ended:
                self._commit([task], [])
        elif ended and ended[0].outputs:
            [task] = ended
            left, task.left = task.left, task.parked.after(error, None)
            task.outputs = self.processor.failure(task.left, task.left.error) if left is None else ()
            self._commit(ended, undone)
        else:
            raise Unreachable("Kafka", f"topic {self.kept.topic!r} takes no records: {error}") from error

    def _transact(self, ended: Sequence[Task], undone: Sequence[Task], positions: Mapping[Partition, Position]) -> None:
        def send(producer: Any) -> None:
            for task in ended:
                for output in task.outputs:
                    headers = [*output.headers.items(), ("compactory-event-id", task.parked.id)]
                    producer.produce(output.topic, output.data(), output.key, headers=headers)
                if task.left is not None or task.kept:
                    self.kept.write(producer, task.parked.id, task.left)
            for task in undone:
                self.kept.write(producer, task.parked.id, task.parked)
            self.group.send_offsets(producer, positions)

        try:
            self.publisher.transact(send)
        except (ConfigError, TopicRefused, Unreachable):
            raise
        except CompactoryError as error:  # the group has gone on without us, or Kafka has ended the transaction
            raise Unreachable("Kafka", str(error)) from error

    def _settle(self, task: Task) -> None:
        left = task.left
        self._unkept.pop(task.parked.id, None)
        if left is not None and left.state == "waiting":
            task.parked, task.kept, task.ended = left.without_value(), True, False
            self._backlog.put_back(task)
            self.board.counters["retries"] += 1
            return
        self._backlog.remove(task)
        self.board.counters["events" if left is None else "failed"] += 1


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
        size=len(value or b""),
    )


def _event(parked: Parked, decode: Callable[[bytes], Any]) -> Event:
    value = None if parked.value is None else decode(parked.value)
    names = ("id", "topic", "partition", "offset", "timestamp_ms", "key")
    return Event(value=value, attempt=parked.attempts + 1, **{name: getattr(parked, name) for name in names})
