"""Compares a topic with the tables that are published to it, while both change.

A first pass goes over everything and keeps no values; keys that are not equal are looked at again, until the source has
caught up with each or the time is up. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compactory.kafka.client import Kafka
from compactory_connectors.kafka.topic_reader import TopicReader

from ..config.connector import ConnectorConfig
from ..offsets.offset import SourceOffset
from ..offsets.stored_offsets import StoredOffset, read_offsets
from ..offsets.target_state import read_target_state
from ..planning.table_plan import TablePlan
from ..postgres.server import Server
from .checker import Finding, Rules
from .comparison import DIGESTED, QUICK, Comparison, Fingerprint, Tally
from .outcome import Difference, Outcome
from .progress import Progress, untold
from .suspects import Suspects
from .table_side import Look, look_at

__all__ = ["Options", "Verifier"]

_MOST_SUSPECTS = 50_000
_MOST_REASONS = 5
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``wait``: seconds that a running source may take to catch up, once everything was read. ``most``: differing keys
    whose values are kept. ``digests``: compute those of every key range as well, which doubles the time.
    """

    wait: float = 30.0
    most: int = 1000
    digests: bool = False


@dataclass(frozen=True, slots=True)
class _TopicState:
    """The tables' offsets in the offsets topic at a moment."""

    offsets: tuple[SourceOffset | None, ...]
    rules: Rules


class Verifier:
    """One topic and its tables. Owned by one thread; the connection is the caller's.

    Raises psycopg.Error, TableReplaced, Unreachable and ConfigError.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        kafka: Kafka,
        server: Server,
        plans: Sequence[TablePlan],
        options: Options,
        progress: Progress = untold,
    ) -> None:
        self._connector = connector
        self._kafka = kafka
        self._server = server
        self._plans = plans
        self._keys = [plan.offset_key(server.database) for plan in plans]
        self._options = options
        self._progress = progress
        self._unreadable: list[str] = []
        self._notes: list[str] = []

    def run(self, topic: str, *, whole: bool = True) -> Outcome:
        """Compare. ``whole`` False: the connector publishes more tables there, so that extra keys may be theirs."""
        began = time.monotonic()
        with TopicReader(self._kafka, topic) as side:
            fingerprint = DIGESTED if self._options.digests else QUICK
            tally = self._first(side, fingerprint, whole)
            deadline = time.monotonic() + self._options.wait
            while tally.untracked and self._sources() and time.monotonic() < deadline:
                time.sleep(_LONGEST_PAUSE)  # a load is under way: too many keys to look at one by one
                tally = self._first(side, fingerprint, whole)
            parts_of = [plan.rows.key_columns_of for plan in self._plans]
            suspects = Suspects(self._worth_a_look(tally), fingerprint.key, parts_of)
            rounds = self._follow(side, suspects, whole, deadline)
        return self._outcome(side, tally, suspects, rounds, time.monotonic() - began)

    def _first(self, side: TopicReader, fingerprint: Fingerprint, whole: bool) -> Tally:
        with Comparison(fingerprint) as first:
            marks = side.ends()
            topic_state = self._topic_state(side.topic, whole)
            done = 0
            for number, look in self._looks(topic_state):
                for rows in look.records(side.topic):
                    first.take_rows(rows)
                    done += len(rows)
                    self._progress(f"table {self._plans[number].qualified}", done)
            side.rewind()
            done = 0
            for records in side.read_to(side.ends()):
                first.take_records(records, marks)
                done += len(records)
                self._progress(f"topic {side.topic}", done)
            return first.compare(topic_state.rules, _MOST_SUSPECTS)

    def _follow(self, side: TopicReader, suspects: Suspects, whole: bool, deadline: float) -> int:
        """Look again until there is a verdict on every key, nothing will come any more, or the time is up."""
        if not suspects.watched:
            return 0
        pause, rounds = _SHORTEST_PAUSE, 0
        side.rewind()
        while True:
            rounds += 1
            self._round(side, suspects, whole, scan=rounds == 1 or not suspects.known)
            left = len(suspects.watched)
            self._progress("keys on their way", left)
            running = bool(self._sources())
            if left and time.monotonic() > deadline and running:
                suspects.give_up_on_sweeps()
            if not left or time.monotonic() > deadline or (rounds > 1 and not running):
                return rounds
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 1.5)

    def _round(self, side: TopicReader, suspects: Suspects, whole: bool, *, scan: bool) -> None:
        marks = side.ends()
        topic_state = self._topic_state(side.topic, whole)
        suspects.begin_rows()
        for number, look in self._looks(topic_state):
            for rows in look.rows(side.topic, None if scan else suspects.parts(number)):
                suspects.take_rows(number, rows)
        for records in side.read_to(side.ends()):
            suspects.take_records(records)
        suspects.check(marks, topic_state.rules)

    def _looks(self, topic_state: _TopicState) -> Iterator[tuple[int, Look]]:
        """One table after the other, each in a snapshot of its own."""
        for number, (plan, offset) in enumerate(zip(self._plans, topic_state.offsets, strict=True)):
            with look_at(self._server, plan, offset) as look:
                yield number, look
                self._unreadable = look.unreadable[:_MOST_REASONS] or self._unreadable

    def _topic_state(self, topic: str, whole: bool) -> _TopicState:
        """The offsets that are stored now. An offset about another topic of that name says nothing of this one."""
        stored = read_offsets(self._kafka)
        mine = {item.key: item for item in stored}
        ids = {name: found.topic_id for name, found in self._kafka.topics({plan.topic for plan in self._plans}).items()}
        offsets = tuple(
            _about(mine.get(key), plan.topic, ids.get(plan.topic))
            for key, plan in zip(self._keys, self._plans, strict=True)
        )
        others = sorted(
            item.table
            for item in stored
            if item.offset is not None and item.offset.topic is not None and item.offset.topic[0] == topic
            if item.table not in {mine[key].table for key in self._keys if key in mine}
        )
        if others:
            self._note(
                f"{', '.join(others)} is published to topic {topic} too: keys that only the topic has may be its own"
            )
        return _TopicState(offsets, self._rules(offsets, alone=whole and not others))

    def _rules(self, offsets: Sequence[SourceOffset | None], *, alone: bool) -> Rules:
        appending = any(plan.appends for plan in self._plans)
        spread = any(len(plan.rows.topics) > 1 for plan in self._plans)
        if appending:
            self._note("mode incrementing sends each new row once: only rows that were never sent count")
        elif spread:
            self._note("rows are spread over several topics: keys that only the topic has may be of rows that moved on")
        return Rules(
            removes=alone and not appending and not spread,
            updates=not appending,
            # of tables that share a topic a source removes nothing: a key may be another's
            sweeps_later=any(offset is None or (offset.sweep and len(offsets) == 1) for offset in offsets),
        )

    def _worth_a_look(self, tally: Tally) -> Mapping[int, Finding]:
        """Every key that is not decided, and of the differences as many as are to be shown.

        Where no source runs, what waits for one will go on waiting.
        """
        waits = not self._sources() and tally.findings[Finding.CHANGING] == 0
        undecided = {number: its for number, its in tally.suspects.items() if its.open and not waits}
        decided = [(number, its) for number, its in tally.suspects.items() if its.stays]
        return undecided | dict(decided[: self._options.most])

    def _sources(self) -> list[str]:
        return self._server.running_sources(self._connector.name)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _outcome(self, side: TopicReader, tally: Tally, suspects: Suspects, rounds: int, seconds: float) -> Outcome:
        findings = tally.findings.copy()
        findings.subtract(tally.suspects[number] for number in suspects.findings)
        findings.update(suspects.findings.values())
        stay = [number for number, finding in suspects.findings.items() if finding.stays]
        stored = {item.key: item for item in read_offsets(self._kafka)}
        differences: list[Difference] = [suspects.difference(number) for number in stay]
        return Outcome(
            topic=side.topic,
            tables=tuple(plan.qualified for plan in self._plans),
            expected=tally.expected,
            stored=tally.stored,
            findings=+findings,
            differences=tuple(sorted(differences, key=lambda each: each.key)),
            doubled=tally.doubled,
            sources=tuple(self._sources()),
            paused=read_target_state(self._kafka, self._connector.name).is_paused,
            polled=all(key in stored and stored[key].offset is not None for key in self._keys),
            rounds=rounds,
            seconds=seconds,
            unreadable=tuple(self._unreadable),
            notes=tuple(self._notes),
            digests=tally.digests,
        )


def _about(stored: StoredOffset | None, topic: str, topic_id: str | None) -> SourceOffset | None:
    """The offset, where it is about this topic."""
    if stored is None or stored.offset is None:
        return None
    known = stored.offset.topic
    if known is not None and topic_id is not None and known != (topic, topic_id):
        return None
    return stored.offset
