"""Compares a topic with the tables that are published to it, while both change.

A first pass reads everything and keeps no values. Keys that are not equal are checked again, until there is a verdict
on each or the time is up. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.topic_reader import TopicReader

from ..config.connector import ConnectorConfig
from ..offsets.offset import SourceOffset
from ..offsets.stored_offsets import StoredOffset, matching_tables, read_offsets, read_target_state
from ..planning.planner import plan_tables
from ..planning.table_plan import TablePlan
from ..postgres.server import Server, connected
from .checker import Difference, Finding, Outcome, Progress, Rules, ignore_progress
from .comparison import DIGESTED, QUICK, Comparison, Fingerprint, Tally
from .suspects import Suspects
from .table_side import TableSnapshot, table_snapshot

__all__ = ["Options", "Verifier", "by_topic", "verify"]

_MOST_SUSPECTS = 50_000
_MOST_REASONS = 5
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a verification.

    ``wait``: seconds for a running source to catch up after the first pass. ``most_differences``: keys whose values are
    kept. ``digests``: compute those of every key range as well, which doubles the time.
    """

    wait: float = 30.0
    most_differences: int = 1000
    digests: bool = False


@dataclass(frozen=True, slots=True)
class _TopicState:
    """The tables' stored offsets, and the rules that follow."""

    offsets: tuple[SourceOffset | None, ...]
    rules: Rules


class Verifier:
    """Compares one topic with its tables. Owned by one thread; the caller owns the connection.

    Raises psycopg.Error, TableReplaced, Unreachable and ConfigError.
    """

    def __init__(
        self,
        connector: ConnectorConfig,
        kafka: Kafka,
        server: Server,
        plans: Sequence[TablePlan],
        options: Options,
        progress: Progress = ignore_progress,
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

    def run(self, topic: str, *, is_whole: bool = True) -> Outcome:
        """Compare. ``is_whole`` False: extra keys may belong to other tables of the connector."""
        began = time.monotonic()
        with TopicReader(self._kafka, topic) as reader:
            fingerprint = DIGESTED if self._options.digests else QUICK
            tally = self._first_pass(reader, fingerprint, is_whole)
            deadline = time.monotonic() + self._options.wait
            while tally.untracked and self._sources() and time.monotonic() < deadline:
                time.sleep(_LONGEST_PAUSE)  # during a load: too many keys to check one by one
                tally = self._first_pass(reader, fingerprint, is_whole)
            parts_of = [plan.rows.key_columns_of for plan in self._plans]
            suspects = Suspects(self._suspects(tally), fingerprint.key, parts_of)
            rounds = self._follow(reader, suspects, is_whole, deadline)
        return self._outcome(reader.topic, tally, suspects, rounds, time.monotonic() - began)

    def _first_pass(self, reader: TopicReader, fingerprint: Fingerprint, is_whole: bool) -> Tally:
        with Comparison(fingerprint) as comparison:
            ends = reader.ends()
            topic_state = self._topic_state(reader.topic, is_whole)
            count = 0
            for number, snapshot in self._snapshots(topic_state):
                for rows in snapshot.records(reader.topic):
                    comparison.take_rows(rows)
                    count += len(rows)
                    self._progress(f"table {self._plans[number].qualified}", count)
            reader.rewind()
            count = 0
            for records in reader.read_to(reader.ends()):
                comparison.take_records(records, ends)
                count += len(records)
                self._progress(f"topic {reader.topic}", count)
            return comparison.compare(topic_state.rules, _MOST_SUSPECTS)

    def _follow(self, reader: TopicReader, suspects: Suspects, is_whole: bool, deadline: float) -> int:
        """Check again until every key has a verdict, no source runs, or the time is up; return the number of rounds."""
        if not suspects.watched:
            return 0
        pause, rounds = _SHORTEST_PAUSE, 0
        reader.rewind()
        while True:
            rounds += 1
            self._round(reader, suspects, is_whole, scan=rounds == 1 or not suspects.have_rows)
            watched = len(suspects.watched)
            self._progress("keys on their way", watched)
            is_running = bool(self._sources())
            if watched and time.monotonic() > deadline and is_running:
                suspects.give_up_on_sweeps()
            if not watched or time.monotonic() > deadline or (rounds > 1 and not is_running):
                return rounds
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 1.5)

    def _round(self, reader: TopicReader, suspects: Suspects, is_whole: bool, *, scan: bool) -> None:
        ends = reader.ends()
        topic_state = self._topic_state(reader.topic, is_whole)
        suspects.begin_rows()
        for number, snapshot in self._snapshots(topic_state):
            for rows in snapshot.rows(reader.topic, None if scan else suspects.parts(number)):
                suspects.take_rows(number, rows)
        for records in reader.read_to(reader.ends()):
            suspects.take_records(records)
        suspects.check(ends, topic_state.rules)

    def _snapshots(self, topic_state: _TopicState) -> Iterator[tuple[int, TableSnapshot]]:
        """Yield a snapshot of each table, one after the other."""
        for number, (plan, offset) in enumerate(zip(self._plans, topic_state.offsets, strict=True)):
            with table_snapshot(self._server, plan, offset) as snapshot:
                yield number, snapshot
                self._unreadable = snapshot.unreadable[:_MOST_REASONS] or self._unreadable

    def _topic_state(self, topic: str, is_whole: bool) -> _TopicState:
        """Return the stored offsets, without those of a former topic with this name."""
        stored = read_offsets(self._kafka)
        by_key = {item.key: item for item in stored}
        ids = {
            name: described.topic_id
            for name, described in self._kafka.topics({plan.topic for plan in self._plans}).items()
        }
        offsets = tuple(
            _about(by_key.get(key), plan.topic, ids.get(plan.topic))
            for key, plan in zip(self._keys, self._plans, strict=True)
        )
        other_tables = sorted(
            item.table
            for item in stored
            if item.offset is not None and item.offset.topic is not None and item.offset.topic[0] == topic
            if item.table not in {by_key[key].table for key in self._keys if key in by_key}
        )
        if other_tables:
            self._note(f"{', '.join(other_tables)} is published to topic {topic} too: extra keys may be its own")
        return _TopicState(offsets, self._rules(offsets, is_alone=is_whole and not other_tables))

    def _rules(self, offsets: Sequence[SourceOffset | None], *, is_alone: bool) -> Rules:
        appending = any(plan.appends for plan in self._plans)
        spread = any(len(plan.rows.topics) > 1 for plan in self._plans)
        if appending:
            self._note("mode incrementing sends each new row once: only rows that were never sent count")
        elif spread:
            self._note("rows are spread over several topics: keys that only the topic has may be of rows that moved on")
        return Rules(
            removes=is_alone and not appending and not spread,
            updates=not appending,
            # a source removes nothing from a shared topic: a key may belong to another table
            sweeps_later=len(offsets) == 1 and any(offset is not None and offset.sweep for offset in offsets),
            loads=None in offsets and bool(self._sources()),
        )

    def _suspects(self, tally: Tally) -> Mapping[int, Finding]:
        """Return every key without a verdict, and as many differences as are to be shown.

        Without a running source pending keys stay pending.
        """
        is_stopped = not self._sources() and tally.findings[Finding.CHANGING] == 0
        open_keys = {
            number: finding for number, finding in tally.suspects.items() if finding.is_open and not is_stopped
        }
        differences = [item for item in tally.suspects.items() if item[1].is_final_difference]
        return open_keys | dict(differences[: self._options.most_differences])

    def _sources(self) -> list[str]:
        return self._server.running_sources(self._connector.name)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _outcome(self, topic: str, tally: Tally, suspects: Suspects, rounds: int, seconds: float) -> Outcome:
        findings = tally.findings.copy()
        findings.subtract(tally.suspects[number] for number in suspects.findings)
        findings.update(suspects.findings.values())
        final = [number for number, finding in suspects.findings.items() if finding.is_final_difference]
        stored = {item.key: item for item in read_offsets(self._kafka)}
        differences: list[Difference] = [suspects.difference(number) for number in final]
        return Outcome(
            topic=topic,
            tables=tuple(plan.qualified for plan in self._plans),
            expected=tally.expected,
            stored=tally.stored,
            findings=+findings,
            differences=tuple(sorted(differences, key=lambda difference: difference.key)),
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
    """Return the offset if it is about this topic."""
    if stored is None or stored.offset is None:
        return None
    stored_topic = stored.offset.topic
    if stored_topic is not None and topic_id is not None and stored_topic != (topic, topic_id):
        return None
    return stored.offset


def verify(
    connector: ConnectorConfig,
    kafka: Kafka,
    options: Options,
    *,
    tables: Sequence[str] = (),
    topic: str | None = None,
    progress: Progress = ignore_progress,
) -> Iterator[Outcome]:
    """Compare the topics of a connector with its tables; ``tables`` and ``topic`` choose some of them.

    Raises ConfigError with all problems, Unreachable, and CompactoryError for a statement that Postgres refuses.
    """
    with connected(connector.connection) as server:
        plans = plan_tables(server, connector)
        named = {plan.full_name(server.database): plan for plan in plans}
        chosen = [named[name] for name in matching_tables(list(named), tables)]
        _refuse_keyless(chosen)
        for name, (topic_plans, is_whole) in by_topic(plans, chosen, topic).items():
            yield Verifier(connector, kafka, server, topic_plans, options, progress).run(name, is_whole=is_whole)


def by_topic(
    plans: Sequence[TablePlan], chosen: Sequence[TablePlan], topic: str | None = None
) -> dict[str, tuple[list[TablePlan], bool]]:
    """Return the chosen plans by topic, and True if the connector publishes no others there. Raises ConfigError."""
    topics: dict[str, tuple[list[TablePlan], bool]] = {}
    for name in dict.fromkeys(name for plan in chosen for name in plan.rows.topics):
        topic_plans = [plan for plan in chosen if name in plan.rows.topics]
        topics[name] = topic_plans, len(topic_plans) == sum(name in plan.rows.topics for plan in plans)
    if topic is None:
        return topics
    if topic not in topics:
        raise ConfigError(f"the connector publishes to {', '.join(topics) or 'no topic'}, not to topic {topic!r}")
    return {topic: topics[topic]}


def _refuse_keyless(plans: Sequence[TablePlan]) -> None:
    """Raise ConfigError for tables whose records can't be compared."""
    problems = [f"{plan.label}: its records have no key, so nothing tells them apart" for plan in plans if plan.keyless]
    if problems:
        raise ConfigError(problems)
