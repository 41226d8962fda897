"""Records of one topic key in several partitions: after partition growth, or written by another partitioner. Pure."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from compactory.codec.packed_record import origin_of, recency
from compactory.records import Contested

__all__ = ["PartitionConflicts"]

_MAX_CONTESTED_KEYS = 1000


class PartitionConflicts:
    """Finds the newer record by its timestamp, tombstones included. For the table's thread; any may read the figures.

    ``count``           records of a key that another partition has written
    ``contested_keys``  the first 1,000 such topic keys
    ``tombstones``      topic key → origin of its tombstone, of topics with several partitions
    """

    def __init__(self, directory: str, owners: Mapping[bytes, bytes], tombstones: MutableMapping[bytes, bytes]) -> None:
        self.count = 0
        self.contested_keys: dict[bytes, Contested] = {}
        self.tombstones = tombstones
        self._directory = directory
        self._owners = owners

    def is_superseded(self, topic_key: bytes, origin: bytes) -> bool:
        """Return True if another partition has a newer record of the topic key. Counts records of other partitions."""
        existing = self._owners.get(topic_key) or self.tombstones.get(topic_key)
        if existing is None:
            return False
        partition, existing_partition = origin_of(origin).partition, origin_of(existing).partition
        if partition == existing_partition:
            return False
        self.count += 1
        if topic_key in self.contested_keys or len(self.contested_keys) < _MAX_CONTESTED_KEYS:
            self.contested_keys[topic_key] = Contested(self._directory, topic_key, partition, existing_partition)
        return recency(existing) > recency(origin)

    def forget_tombstones(self, before_ms: int) -> None:
        """Forget tombstones older than a record time, when no older record can come any more."""
        expired = [key for key, origin in self.tombstones.items() if origin_of(origin).timestamp_ms < before_ms]
        for topic_key in expired:
            del self.tombstones[topic_key]
