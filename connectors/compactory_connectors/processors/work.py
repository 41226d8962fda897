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
from .membership import ProcessorGroup, StoredEvents
from .pending import StoredEvent, Task
from .processor import Processor
from .status import Board

__all__ = ["Work"]

log = structlog.get_logger("compactory.process")

_POLL = 0.1  # seconds that a poll waits for a record
_STORE_AFTER = 1.0  # seconds after which an unfinished event is stored, so that the offset moves
_GATHER = 0.1  # seconds that a transaction waits for more finished events
_GRACE = 5.0  # seconds that calls may take after a stop
_BATCH = 16  # events for each call at a time
_MAX_EVENTS = 100_000  # unfinished events; more are not fetched
_MAX_BYTES = 256 << 20  # of their values


@dataclass(slots=True, eq=False)
class Work:
    """The unfinished events of a runner. Owned by one thread; the function is called in others.

    Raises Unreachable, ConfigError. States of an event:

        WAITING → RUNNING → ENDED → finished    its outputs and its offset are committed together
        ENDED → WAITING                         a failed attempt; it is stored until the next one
        ENDED → failed                          set aside, until an operator retries or drops it
    """

    processor: Processor
    group: ProcessorGroup
    stored_events: StoredEvents
    publisher: Publisher
    threads: ThreadPoolExecutor
    loop: LoopThread
    board: Board
    _decode: Callable[[bytes], Any] = field(init=False)
    _positions: dict[Partition, Position] = field(default_factory=dict)  # as of the last poll
    _backlog: Backlog = field(default_factory=Backlog)  # events of the assigned partitions
    _unstored: dict[str, Task] = field(default_factory=dict)  # events that the topic of stored events does not have
    _uncommitted: list[Task] = field(default_factory=list)  # events that have ended
    _ended: SimpleQueue[Task] = field(default_factory=SimpleQueue)
    _running: int = 0  # calls, also for lost partitions
    _taken_at: float = 0.0  # by the monotonic clock; when the oldest events without a committed offset were taken
    _committed_at: float = 0.0  # by the monotonic clock
    _is_reading_paused: bool = False

    def __post_init__(self) -> None:
        self._decode = self.processor.decoder()

    def run_round(self) -> bool:
        """Take events, call the function, commit ended events. Return True if there was a commit."""
        is_paused = self.stored_events.states.is_paused
        self.board.paused = [{"part": "processors", "name": self.processor.name}] if is_paused else []
        if not self._unstored:
            is_busy = self._running or (self._backlog.is_due() and not is_paused)
            self._take(self.processor.concurrency * _BATCH, 0.0 if is_busy else _POLL, is_paused=is_paused)
        if not is_paused:
            self._call_due()
        self._collect(0.02)
        return self._commit_all(_STORE_AFTER)

    def finish(self) -> None:
        """Commit the calls that end within some seconds; store the other events for the next process."""
        deadline = time.monotonic() + _GRACE
        while self._running and time.monotonic() < deadline:
            self._collect(0.1)
        self._take(1, 0.0)  # there may have been a rebalance
        self._commit_all(0.0)

    def beat(self) -> None:
        """Take the events that operators retry; refresh the figures."""
        if self.stored_events.is_current():
            self._add_waiting()
            self.board.set_aside = sum(
                place in self._positions for place in list(self.stored_events.states.failed.values())
            )
        self.board.lag = self.group.lag()
        self.board.waiting = len(self._backlog.tasks)

    def _take(self, limit: int, timeout: float, *, is_paused: bool = False) -> None:
        stops_reading = is_paused or len(self._backlog.tasks) >= _MAX_EVENTS or self._backlog.bytes >= _MAX_BYTES
        if stops_reading is not self._is_reading_paused:
            self.group.pause_reading(stops_reading)
            self._is_reading_paused = stops_reading
        fetched = self.group.poll(limit, timeout)
        self.board.polled_at = self._taken_at = time.monotonic()
        self._follow_assignment()
        for run in fetched:
            for message in run.messages if self.group.is_current(run) else ():
                self._add(message, run.position)

    def _follow_assignment(self) -> None:
        """Drop the events of lost partitions, and take the stored events of new ones."""
        previous = self._positions
        self._positions = {part: position for part, position in self.group.positions.items() if position is not None}
        if self._positions != previous:
            tasks = self._backlog.tasks.values()
            self._backlog = Backlog(task for task in tasks if self._positions.get(task.stored.place) is task.position)
            self._unstored = {event: task for event, task in self._unstored.items() if event in self._backlog.tasks}
        if any(previous.get(part) is not position for part, position in self._positions.items()):
            self.board.is_ready, self.board.detail, self._is_reading_paused = True, None, False
            self._add_waiting()

    def _add_waiting(self) -> None:
        """Add the waiting events of assigned partitions that the topic of stored events has."""
        for stored in list(self.stored_events.states.waiting.values()):
            position = self._positions.get(stored.place)
            if position is not None and stored.id not in self._backlog.tasks:
                self._backlog.add(Task(stored, position, is_stored=True, size=stored.size))

    def _add(self, message: Message, position: Position) -> None:
        stored = _stored_event(message, self.group.topic_id)
        task = Task(stored, position, is_stored=False, size=stored.size)
        if self._backlog.add(task):
            self._unstored[stored.id] = task

    def _call_due(self) -> None:
        for task in self._backlog.take(self.processor.concurrency - self._running):
            stored = self.stored_events.event(task.stored) if task.is_stored else task.stored
            if stored is None:
                self._backlog.put_back(task, soon=True)
                continue
            task.stored = stored
            self._running += 1
            self.threads.submit(self._call, task)

    def _call(self, task: Task) -> None:
        """Call the function, in a thread of the pool."""
        is_decoded = False
        try:
            event = _event(task.stored, self._decode)
            is_decoded = True
            task.remaining, task.outputs = None, self.processor.outputs(event, self.loop.wait_for)
        except BaseException as error:  # noqa: BLE001 (of the user's code: sys.exit, a coroutine that was cancelled)
            self._fail(task, error, is_decoded=is_decoded)
        self._ended.put(task)

    def _fail(self, task: Task, error: BaseException, *, is_decoded: bool) -> None:
        retry, attempt = self.processor.retry, task.stored.attempts + 1
        is_final = not is_decoded or isinstance(error, Refused) or retry.ends(attempt, error)
        task.remaining = task.stored.after(error, None if is_final else retry.pause(attempt))
        task.outputs = self.processor.failure(task.remaining, task.remaining.error) if is_final else ()
        log.warning(
            "an event was set aside" if is_final else "an attempt failed",
            processor=self.processor.name,
            id=task.stored.id,
            attempt=attempt,
            error=task.remaining.error,
            traceback=f"compactory process failed {self.processor.name} --json",
        )

    def _collect(self, timeout: float) -> None:
        """Collect ended calls; wait up to ``timeout`` seconds for the first one."""
        try:
            while self._running:
                task = self._ended.get(timeout=timeout)
                task.ended = True
                self._uncommitted.append(task)
                self._running -= 1
                timeout = 0.0
        except Empty:
            return

    def _commit_all(self, store_after: float) -> bool:
        """Commit ended events, and store events that have been unfinished for ``store_after`` seconds.

        Return True if there was a commit.
        """
        ended = self._uncommitted = [
            task for task in self._uncommitted if self._backlog.tasks.get(task.stored.id) is task
        ]
        unfinished = [task for task in self._unstored.values() if not task.ended]
        clock = time.monotonic()
        if not (ended or unfinished) or (unfinished and clock - self._taken_at < store_after):
            return False
        if self._backlog.is_due() and clock - self._committed_at < min(_GATHER, store_after):
            return False
        self._commit(ended, unfinished)
        self._uncommitted = []
        self._committed_at = time.monotonic()
        return True

    def _commit(self, ended: Sequence[Task], unfinished: Sequence[Task]) -> None:
        """Write outputs, stored events and offsets in one transaction."""
        # Offsets of all partitions are committed, so that Kafka fences a member without them.
        positions = {task.stored.place: task.position for task in (*ended, *unfinished)}
        try:
            self._transact(ended, unfinished, positions)
        except TopicRefused as error:
            self._commit_apart(ended, unfinished, error)
            return
        for task in ended:
            self._settle(task)
        for task in unfinished:
            task.is_stored = True
            self._unstored.pop(task.stored.id, None)
            if not task.running:
                task.stored = task.stored.without_value()
        for part, position in positions.items():
            self.group.advance(part, position.read)

    def _commit_apart(self, ended: Sequence[Task], unfinished: Sequence[Task], error: TopicRefused) -> None:
        """Find the outputs that Kafka refuses: store every event, then commit each alone; set the refused one aside."""
        if len(ended) > 1 or (ended and unfinished):
            self._commit([], [*unfinished, *(task for task in ended if not task.is_stored)])
            for task in ended:
                self._commit([task], [])
        elif ended and ended[0].outputs:
            [task] = ended
            was_finished = task.remaining is None
            task.remaining = task.stored.after(error, None)
            task.outputs = self.processor.failure(task.remaining, task.remaining.error) if was_finished else ()
            self._commit(ended, unfinished)
        else:
            raise Unreachable("Kafka", f"topic {self.stored_events.topic!r} takes no records: {error}") from error

    def _transact(
        self, ended: Sequence[Task], unfinished: Sequence[Task], positions: Mapping[Partition, Position]
    ) -> None:
        def send(producer: Any) -> None:
            for task in ended:
                for output in task.outputs:
                    headers = [*output.headers.items(), ("compactory-event-id", task.stored.id)]
                    producer.produce(output.topic, output.data(), output.key, headers=headers)
                if task.remaining is not None or task.is_stored:
                    self.stored_events.write(producer, task.stored.id, task.remaining)
            for task in unfinished:
                self.stored_events.write(producer, task.stored.id, task.stored)
            self.group.send_offsets(producer, positions)

        try:
            self.publisher.transact(send)
        except (ConfigError, TopicRefused, Unreachable):
            raise
        except CompactoryError as error:  # the group has removed this member, or Kafka has aborted the transaction
            raise Unreachable("Kafka", str(error)) from error

    def _settle(self, task: Task) -> None:
        remaining = task.remaining
        self._unstored.pop(task.stored.id, None)
        if remaining is not None and remaining.state == "waiting":
            task.stored, task.is_stored, task.ended = remaining.without_value(), True, False
            self._backlog.put_back(task)
            self.board.retries += 1
            return
        self._backlog.remove(task)
        if remaining is None:
            self.board.events += 1
        else:
            self.board.failed += 1


def _stored_event(message: Message, topic_id: str | None) -> StoredEvent:
    topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
    key, value = message.key(), message.value()
    return StoredEvent(
        id=f"{topic_id or topic}-{partition}-{offset}",
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=message.timestamp()[1],
        key=None if key is None else bytes(key).decode(errors="replace"),
        value=None if value is None else bytes(value),
        size=len(value or b""),
    )


def _event(stored: StoredEvent, decode: Callable[[bytes], Any]) -> Event:
    value = None if stored.value is None else decode(stored.value)
    names = ("id", "topic", "partition", "offset", "timestamp_ms", "key")
    return Event(value=value, attempt=stored.attempts + 1, **{name: getattr(stored, name) for name in names})
