"""One record of the log, by its version."""

from __future__ import annotations

from compactory.clock import clock
from compactory.codec.packed_record import entry_of, pack, partition_base
from compactory.directory import Directory
from compactory.entries.record_reader import name_reader
from compactory.errors import Unreachable, VersionGone
from compactory.kafka.client import Consumer, Kafka, TopicPartition, event_kind, kafka_errors
from compactory.records import Entry
from compactory.token import Version

__all__ = ["entry_at"]

_STEP = 0.5  # seconds that one call of the client may wait


def entry_at(kafka: Kafka, directory: Directory[object], version: Version, timeout: float) -> Entry:
    """Return what a directory had of a version's record. Raises as `GlobalStore.at` does."""
    topic, deadline = directory.topic, clock() + timeout
    _check_topic(kafka, topic, version, timeout)
    with kafka_errors("read", kafka.bootstrap):
        consumer = kafka.consumer("follow")
        try:
            consumer.incremental_assign([TopicPartition(topic, version.partition, version.offset)])
            value, stamp, key = _record(consumer, version, deadline)
        finally:
            consumer.close()
    _check_topic(kafka, topic, version, max(0.1, deadline - clock()))  # it may have been created again meanwhile
    packed = value + pack(partition_base(version.partition) + version.offset, stamp)
    name = key if directory.key is None else name_reader(directory)(packed)
    return entry_of(name.decode(), packed, topic)


def _check_topic(kafka: Kafka, name: str, version: Version, timeout: float) -> None:
    topic = kafka.topics([name], timeout).get(name)
    if topic is None or version.topic_id != (topic.topic_id or name):
        raise VersionGone(f"version {version} is of another topic than {name!r} of now: one was deleted since")
    if version.partition not in topic.partitions:
        raise VersionGone(f"version {version}: topic {name!r} has no partition {version.partition}")


def _record(consumer: Consumer, version: Version, deadline: float) -> tuple[bytes, int, bytes]:
    """Return value, timestamp and key of the record of a version."""
    while clock() < deadline:
        for message in consumer.consume(1, min(_STEP, max(0.0, deadline - clock()))):
            error = message.error()
            kind = None if error is None else event_kind(error)
            if kind in ("lost", "cut", "end") or (kind is None and message.offset() != version.offset):
                raise VersionGone(f"version {version}: the record is not in the log, as compaction removes old ones")
            if kind is not None:
                continue
            value, key = message.value(), message.key()
            if value is None or key is None:
                raise VersionGone(f"version {version} is of a deletion: it never had a value")
            return value, message.timestamp()[1], key
    raise Unreachable("Kafka", f"version {version} was not read in time")
