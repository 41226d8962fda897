"""Open transactions of a partition, asked as Kafka's tools do (KIP-664): after a time-out, to name the one that blocks.

confluent-kafka 2.16 has no call for it; it knows the brokers. Plain and TLS connections, and the login SASL PLAIN.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka
from compactory.kafka.wire import Connection, array, text
from compactory.records import Partition

__all__ = ["OpenTransaction", "open_transactions"]

log = logging.getLogger("compactory.store")

_DESCRIBE_PRODUCERS, _DESCRIBE_TRANSACTIONS, _LIST_TRANSACTIONS = 61, 65, 66
_FAILURES = (OSError, ValueError, struct.error, CompactoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that was not ended. Fields that no broker told are None."""

    producer_id: int
    transactional_id: str | None = None
    seconds: float | None = None
    """Since it began, by the clocks of its coordinator and of this machine."""

    def __str__(self) -> str:
        name = None if self.transactional_id is None else f"transactional.id {self.transactional_id!r}"
        since = None if self.seconds is None else f"open for {self.seconds:.0f} s"
        known = ", ".join(item for item in (name, since) if item)
        return f"an open transaction of producer {self.producer_id}" + (f" ({known})" if known else "")


def open_transactions(
    kafka: Kafka, partitions: Collection[Partition], timeout: float = 2.0
) -> dict[Partition, OpenTransaction]:
    """Return the open transaction that begins first in each partition, which is what holds its last stable offset.

    Partitions of which nothing could be learnt are absent: another login, brokers before 2.8, no right to read the
    topic. Takes ``timeout`` seconds at most. Never raises.
    """
    deadline = time.monotonic() + timeout
    properties = kafka.properties()
    first: dict[Partition, int] = {}
    known: dict[int, OpenTransaction] = {}
    try:
        leaders = kafka.leaders(partitions, timeout / 2)
        for leader in set(leaders.values()):
            with Connection(leader, properties, deadline) as connection:
                first |= _producers(connection, [part for part in partitions if leaders.get(part) == leader])
        for broker in kafka.brokers(max(0.1, deadline - time.monotonic())) if first else ():
            if set(first.values()) <= known.keys():
                break
            with Connection(broker, properties, deadline) as connection:
                known |= _named(connection, set(first.values()) - known.keys())
    except _FAILURES as error:
        log.debug("the open transactions could not be told: %s", error)
    return {part: known.get(number, OpenTransaction(producer_id=number)) for part, number in first.items()}


def _producers(connection: Connection, partitions: Collection[Partition]) -> dict[Partition, int]:
    """Ask a leader for the producer whose open transaction begins first, by partition."""
    topics = {part.topic: [each.partition for each in partitions if each.topic == part.topic] for part in partitions}
    asked = array(text(name) + array(struct.pack(">i", each) for each in of) + b"\0" for name, of in topics.items())
    answer = connection.ask(_DESCRIBE_PRODUCERS, 0, asked)

    def producer() -> tuple[int, int]:
        number = answer.number("q")
        for kind in "iiqi":  # epoch, last sequence, last timestamp, coordinator's epoch
            answer.number(kind)
        start = answer.number("q")
        answer.tags()
        return start, number

    def partition() -> tuple[int, list[tuple[int, int]]]:
        number = answer.number("i")
        answer.number("h")  # with an error there are no producers
        answer.text()
        found = answer.array(producer)
        answer.tags()
        return number, sorted(each for each in found if each[0] >= 0)

    def topic() -> dict[Partition, int]:
        name = answer.text()
        found = {Partition(name, number): each[0][1] for number, each in answer.array(partition) if each}
        answer.tags()
        return found

    answer.number("i")
    return {part: number for found in answer.array(topic) for part, number in found.items()}


def _named(connection: Connection, producers: Collection[int]) -> dict[int, OpenTransaction]:
    """Ask a coordinator for names and ages of those transactions that it coordinates."""
    wanted = array(struct.pack(">q", number) for number in producers)
    answer = connection.ask(_LIST_TRANSACTIONS, 0, array(()) + wanted)

    def listed() -> str:
        name = answer.text()
        answer.number("q")
        answer.text()
        answer.tags()
        return name

    answer.number("i")
    answer.number("h")
    answer.array(answer.text)  # states that it does not know
    names = answer.array(listed)
    if not names:
        return {}
    answer = connection.ask(_DESCRIBE_TRANSACTIONS, 0, array(text(name) for name in names))

    def topic() -> None:
        answer.text()
        answer.array(partial(answer.number, "i"))
        answer.tags()

    def described() -> OpenTransaction:
        answer.number("h")
        name = answer.text()
        answer.text()
        answer.number("i")  # its time-out
        began, number = answer.number("q"), answer.number("q")
        answer.number("h")
        answer.array(topic)
        answer.tags()
        seconds = max(0.0, time.time() - began / 1000) if began > 0 else None
        return OpenTransaction(producer_id=number, transactional_id=name, seconds=seconds)

    answer.number("i")
    return {each.producer_id: each for each in answer.array(described)}
