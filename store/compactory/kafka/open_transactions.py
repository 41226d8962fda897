"""Open transactions of a partition, asked as Kafka's tools do (KIP-664): after a time-out, to name the one that blocks.

confluent-kafka 2.16 has no call for it; it knows the brokers. Plain and TLS connections, and the login SASL PLAIN.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from socket import socket

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka
from compactory.kafka.wire import array, ask, connect, text
from compactory.records import Partition

__all__ = ["OpenTransaction", "open_transactions"]

log = logging.getLogger("compactory.store")

_DESCRIBE_PRODUCERS, _DESCRIBE_TRANSACTIONS, _LIST_TRANSACTIONS = 61, 65, 66
# time throttled, topics with their partitions: number, error, its text, producers: id, epoch, last sequence, last
# timestamp, epoch of the coordinator, first offset of the open transaction
_PRODUCERS = ("i", [("s", [("i", "h", "s", [("q", "i", "i", "q", "i", "q")])])])
# time throttled, error, states that it does not know, transactions: name, producer, state
_LISTED = ("i", "h", ["s"], [("s", "q", "s")])
# time throttled, transactions: error, name, state, time-out, begin, producer, its epoch, topics with partitions
_DESCRIBED = ("i", [("h", "s", "s", "i", "q", "q", "h", [("s", ["i"])])])
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

    def left() -> float:
        return max(0.1, deadline - time.monotonic())

    try:
        leaders = kafka.leaders(partitions, timeout / 2)
        for leader in set(leaders.values()):
            with connect(leader, properties, left()) as connection:
                first |= _producers(connection, [part for part in partitions if leaders.get(part) == leader])
        for broker in kafka.brokers(left()) if first else ():
            if set(first.values()) <= known.keys():
                break
            with connect(broker, properties, left()) as connection:
                known |= _named(connection, set(first.values()) - known.keys())
    except _FAILURES as error:
        log.debug("the open transactions could not be told: %s", error)
    return {part: known.get(number, OpenTransaction(producer_id=number)) for part, number in first.items()}


def _producers(connection: socket, partitions: Collection[Partition]) -> dict[Partition, int]:
    """Ask a leader for the producer whose open transaction begins first, by partition."""
    topics = {part.topic: [each.partition for each in partitions if each.topic == part.topic] for part in partitions}
    asked = array(text(name) + array(struct.pack(">i", each) for each in of) + b"\0" for name, of in topics.items())
    _, answered = ask(connection, _DESCRIBE_PRODUCERS, 0, asked, _PRODUCERS)
    found: dict[Partition, int] = {}
    for topic, numbers in answered:
        for number, _, _, producers in numbers:  # with an error there are no producers
            begun = [(start, producer) for producer, *_, start in producers if start >= 0]
            if begun:
                found[Partition(topic, number)] = min(begun)[1]
    return found


def _named(connection: socket, producers: Collection[int]) -> dict[int, OpenTransaction]:
    """Ask a coordinator for names and ages of those transactions that it coordinates."""
    wanted = array(struct.pack(">q", number) for number in producers)
    *_, listed = ask(connection, _LIST_TRANSACTIONS, 0, array(()) + wanted, _LISTED)
    if not listed:
        return {}
    names = array(text(name) for name, _, _ in listed)
    _, described = ask(connection, _DESCRIBE_TRANSACTIONS, 0, names, _DESCRIBED)
    found: dict[int, OpenTransaction] = {}
    for _, name, _, _, began, number, _, _ in described:
        seconds = max(0.0, time.time() - began / 1000) if began > 0 else None
        found[number] = OpenTransaction(producer_id=number, transactional_id=name, seconds=seconds)
    return found
