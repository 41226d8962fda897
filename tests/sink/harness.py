"""One sink: its database, its topics, sinks in this process and in processes that a signal hits.

Each record of a topic adds one to the counter of its key: a record that is lost, or applied twice, shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg

from compactory.errors import Unreachable
from compactory.kafka.client import Kafka, TopicPartition
from compactory.records import Partition
from compactory_connectors.sink import Records, TransactionalSink
from tests.source.workload import wait_until
from tests.stack.mortal import Mortal

__all__ = ["Bench", "committed", "count"]

COUNTERS = """
CREATE TABLE counters (key text PRIMARY KEY, applied int8 NOT NULL);
CREATE TABLE effects (topic text, partition int4, "offset" int8, key text, value text,
                      number int8 GENERATED ALWAYS AS IDENTITY,
                      at timestamptz DEFAULT clock_timestamp(), backend int4 DEFAULT pg_backend_pid());
"""

AROUND = """
SELECT partition, "offset", key, number, at, backend FROM
   (SELECT *, "offset" - lag("offset") OVER w AS gap, lead("offset") OVER w - "offset" AS next_gap
      FROM effects WINDOW w AS (PARTITION BY topic, partition ORDER BY "offset", number)) AS e
 WHERE gap <> 1 OR next_gap <> 1 ORDER BY partition, "offset", number LIMIT 100
"""

BEFORE = """
SELECT *, lag(number) OVER (PARTITION BY topic, partition, key ORDER BY "offset") AS before FROM effects
"""


def count(connection: psycopg.Connection[Any], records: Records) -> None:
    """The handler: exact only if every record comes once."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO counters VALUES (%s, 1) ON CONFLICT (key) DO UPDATE SET applied = counters.applied + 1",
            [[_text(record.key)] for record in records],
        )
        cursor.executemany(
            "INSERT INTO effects VALUES (%s, %s, %s, %s, %s)",
            [[r.topic, r.partition, r.offset, _text(r.key), _text(r.value)] for r in records],
        )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def committed(bench: Bench, topic: str) -> int:
    """The offset of partition 0 that the sink's group has committed to Kafka."""
    consumer = bench.kafka.member({"group.id": f"compactory-sink-{bench.name}"})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
        return int(found.offset)
    finally:
        consumer.close()


class Bench:
    """What a test of the sink needs."""

    def __init__(self, url: str, kafka: Kafka, address: str, unique: Callable[[str], str]) -> None:
        self.url, self.kafka, self.address, self.unique = url, kafka, address, unique
        self.name = unique("sink")
        self.sql = psycopg.connect(url, autocommit=True)
        self.sql.execute(COUNTERS)
        self.producer = kafka.producer({"linger.ms": 1}, {"enable.idempotence": True}, lambda _: None)
        self._sinks: list[TransactionalSink] = []
        self._mortals: list[Mortal] = []

    def topic(self, partitions: int = 1, **config: str) -> str:
        name = self.unique("sunk")
        self.kafka.create_topic(name, partitions=partitions, config=config)
        wait_until(lambda: self.kafka.topics([name]), what="the topic")
        return name

    def produce(
        self, topic: str, records: Iterable[tuple[str | None, str | bytes | None]], partition: int | None = None
    ) -> None:
        for key, value in records:
            self.producer.produce(topic, value, key, -1 if partition is None else partition)
        assert self.producer.flush(30) == 0

    def sink(self, topics: str | Sequence[str], handler: Any = count, **options: Any) -> TransactionalSink:
        options = {"name": self.name, **options}
        sink = TransactionalSink(
            self.kafka, self.url, [topics] if isinstance(topics, str) else topics, handler, **options
        )
        sink.start()
        self._sinks.append(sink)
        return sink

    def mortal(self, topic: str, *arguments: str, url: str | None = None, kafka: str | None = None) -> Mortal:
        given = (url or self.url, kafka or self.address, self.name, topic, *arguments)
        self._mortals.append(Mortal("tests.sink.mortal", *given))
        return self._mortals[-1]

    def rows(self, statement: str, *parameters: Any) -> list[Any]:
        return self.sql.execute(statement, parameters).fetchall()

    def offset(self, topic: str, partition: int = 0) -> int | None:
        found = self.rows(
            'SELECT "offset" FROM compactory.kafka_partitions WHERE (sink, topic, partition) = (%s, %s, %s)',
            self.name,
            topic,
            partition,
        )
        return found[0][0] if found else None

    def applied(self) -> dict[str, int]:
        return dict(self.rows("SELECT key, applied FROM counters"))

    def values(self) -> list[str]:
        return [row[0] for row in self.rows('SELECT value FROM effects ORDER BY topic, partition, "offset"')]

    def wait_for_end(self, topic: str, timeout: float = 30.0) -> None:
        """Until the database's offsets are at the ends of the log."""
        ends: dict[Partition, int] = {}

        def reached() -> bool:
            try:
                if not ends:
                    partitions = self.kafka.topics([topic])[topic].all()
                    found = self.kafka.high_watermarks(partitions)
                    ends.update({part: found[part] for part in partitions})
            except (Unreachable, KeyError):  # of a broker that has just started
                return False
            return all((self.offset(topic, part.partition) or 0) == end for part, end in ends.items())

        wait_until(reached, timeout, f"the end of {topic}")

    def wait_for_values(self, *values: str, timeout: float = 30.0) -> None:
        wait_until(lambda: self.values() == list(values), timeout, f"{values}, there is {self.values()}")

    def compare(self, produced: Counter[str]) -> None:
        """Every record was applied once, and those of a key in their order."""
        applied = self.applied()
        differing = {key: f"{applied.get(key, 0)} of {number}" for key, number in produced.items()}
        assert applied == produced, f"applied: {differing}\n{self._story()}"
        assert self.rows('SELECT topic, partition, "offset" FROM effects GROUP BY 1, 2, 3 HAVING count(*) > 1') == []
        assert self.rows(f'SELECT key, "offset" FROM ({BEFORE}) AS e WHERE before > number') == []

    def _story(self) -> str:
        """What tells why records are missing or twice: those beside gaps and repetitions, with time and session."""
        partitions = self.rows("SELECT * FROM compactory.kafka_partitions")
        ends = self.kafka.high_watermarks([Partition(topic, partition) for _, topic, partition, *_ in partitions])
        told = ["ends:", *ends.items(), "offsets:", *partitions, "beside gaps and repetitions:"]
        return "\n".join(map(str, [*told, *self.rows(AROUND)]))

    def close(self) -> None:
        for mortal in self._mortals:
            mortal.end()
        for sink in self._sinks:
            assert sink.stop()
        self.sql.close()
