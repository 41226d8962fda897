"""Processors under test, and topics as they look to who reads what is committed."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from compactory.kafka.client import Kafka, TopicPartition
from compactory_connectors.processors import Event, Failed, Processor, Retry
from tests.store.topics import eventually

QUICK = Retry(max_attempts=4, first=0.05, limit=0.2)


class Provider:
    """An outside system that books each effect in a file, by its idempotency key; shared by processes."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def register(self, key: str, tenant: str) -> None:
        with self.path.open("a") as book:
            book.write(json.dumps([key, tenant]) + "\n")

    def booked(self) -> dict[str, set[str]]:
        """Idempotency key → tenants for which it was used."""
        found: dict[str, set[str]] = defaultdict(set)
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            key, tenant = json.loads(line)
            found[key].add(tenant)
        return found


def registration(name: str, topic: str, created: str, failed: str, book: str, **rules: Any) -> Processor:
    """A chain that registers tenants with the provider."""
    provider = Provider(book)

    def register(event: Event) -> dict[str, Any] | None:
        assert event.key is not None
        provider.register(event.id, event.key)
        value = event.value
        if value is None:
            return None
        if value.get("flaky", 0) >= event.attempt:
            raise ConnectionError("the provider is away")
        if value.get("broke"):
            raise Failed("no money")
        if value.get("slow"):
            eventually(Path(f"{book}.answers").exists)  # the provider takes its time
        return {**value, "registered": True}

    options = {"retry": QUICK, **rules}
    return Processor(function=register, name=name, topic=topic, created=created, failed=failed, **options)


def committed(kafka: str, topic: str) -> list[tuple[str, Any]]:
    """All committed records of a topic, in the order of each partition."""
    client = Kafka(kafka)
    found = client.topics([topic])[topic]
    ends = client.stable_offsets(found.all())
    consumer = client.consumer("load")
    consumer.assign([TopicPartition(*part, 0) for part in ends])
    records, left = [], {part for part, end in ends.items() if end}
    while left:
        for message in consumer.consume(1000, 1.0):
            error = message.error()
            if error is None:
                value = message.value()
                records.append((bytes(message.key() or b"").decode(), None if value is None else json.loads(value)))
            elif error.name() == "_PARTITION_EOF":
                left = {part for part in left if part.partition != message.partition()}
    consumer.close()
    return records
