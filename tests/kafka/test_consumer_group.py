"""A member of a consumer group, in each protocol: the log does not have an offset any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import pytest

from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.kafka.consumer_group import Group, Located
from tests.stack.apache_kafka import needs
from tests.store.topics import Topics, eventually

KINDS = {
    "cooperative": {},
    "eager": {"partition.assignment.strategy": "range"},
    "consumer": {"group.protocol": "consumer"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_is_read_again_after_the_log_lacked_its_offset(
    kind: str, kafka: str, unique: Callable[[str], str]
) -> None:
    """Guarantees 16 and 19: the client fetches nothing of it, nor seeks there, until it is assigned anew."""
    if kind == "consumer":
        needs(4)
    topics = Topics(kafka, unique)
    name = topics.create(partitions=2, cleanup_policy="delete")
    short, other = Partition(name, 0), Partition(name, 1)
    for number in range(4):
        topics.produce(name, (f"k{number}", "{}"))
    topics.produce(name, ("other", "{}"), partition=1)
    topics.cut(name, 2)
    asked: list[Partition] = []
    read: set[tuple[Partition, int]] = set()

    def locate(partitions: Sequence[Partition]) -> Mapping[Partition, Located]:
        """As if the log's start had moved since it was asked for, the first time."""
        asked.extend(partitions)
        offset = 2 if asked.count(short) > 1 else 1
        return {part: Located(offset, offset) if part == short else Located(0, 0) for part in partitions}

    def has_read(*want: tuple[Partition, int]) -> bool:
        for fetched in group.poll(100, 0.1):
            read.update((fetched.partition, message.offset() or 0) for message in fetched.messages)
            group.advance(fetched.partition, fetched.position.read)
        return read == {*want}

    group = Group(Kafka(kafka), [name], unique("group"), KINDS[kind])
    group.attach(locate)
    with closing(group):
        eventually(lambda: has_read((short, 2), (short, 3), (other, 0)), 30)
        group._reassign(Partition(name, 2))  # as after an event of a partition that has gone
    assert asked.count(short) > 1
